// The refiner's arithmetic on the host, in float32: rows of channels, one row for each pixel or token.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless {

// [num_rows, width], dense.
struct Rows {
  int num_rows = 0;
  int width = 0;
  std::vector<float> values = {};

  static Rows zeros(int num_rows, int width) {
    return {
        num_rows, width,
        std::vector<float>(static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(width))};
  }
  float* row(int i) { return values.data() + static_cast<std::ptrdiff_t>(i) * width; }
  const float* row(int i) const { return values.data() + static_cast<std::ptrdiff_t>(i) * width; }
};

// y = x W^T + b. weight: [out, in].
struct FloatProduct {
  int in = 0;
  int out = 0;
  std::vector<float> weight = {};
  std::vector<float> bias = {};
};

struct FloatNorm {
  std::vector<float> gamma = {};
  std::vector<float> beta = {};
};

// Attention with projections of its own, as torch's MultiheadAttention.
struct FloatAttention {
  FloatProduct q, k, v, out;
};

// A picture's rows are its pixels, line by line. Products run on the CPU backend's kernels. One thread at a time.
class FloatOps {
 public:
  // `device`: the CPU. It outlives this.
  static StatusOr<std::unique_ptr<FloatOps>> create(Device& device);

  StatusOr<Rows> linear(const Rows& x, const FloatProduct& product);
  Status layer_norm(Rows& x, const FloatNorm& norm);
  // softmax(q k^T / sqrt(width of a head)) v of the projected inputs, projected.
  StatusOr<Rows> attention(const FloatAttention& weights, int num_heads, const Rows& q,
                           const Rows& k, const Rows& v);
  // 3x3 with a border of zeros, every `stride`-th pixel. product: [out, 9 * channels], the taps line by line, channels of a tap
  // together.
  StatusOr<Rows> convolution(const Rows& x, int side, int stride, const FloatProduct& product);
  // 2x2, stride 2: each pixel becomes four. product: [4 * out, in], rows of a pixel of the four together.
  StatusOr<Rows> transposed_convolution(const Rows& x, int side, const FloatProduct& product,
                                        std::span<const float> bias);

 private:
  FloatOps(std::unique_ptr<Kernels> kernels, std::unique_ptr<Stream> stream);

  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> stream_;
};

// A side after a 3x3 convolution of this stride.
constexpr int convolved_side(int side, int stride) {
  return (side - 1) / stride + 1;
}

// x / 2 (1 + erf(x / sqrt(2)))
void gelu(Rows& x);
// Over all rows and the channels of a group.
void group_norm(Rows& x, int num_groups, const FloatNorm& norm);
Rows sum_of(const Rows& a, const Rows& b);

// Of a square picture (bilinear.h).
Rows resize_bilinear(const Rows& x, int side, int new_side);

}  // namespace gapless
