#include "refine/float_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/dense_ops.h"
#include "refine/bilinear.h"

namespace gapless {
namespace {

constexpr float kNormEps = 1e-5f;

// Calls part(begin, end) for pieces of [0, count), on several threads.
template <typename Part>
void in_pieces(std::int64_t count, std::int64_t piece, const Part& part) {
  ThreadPool::shared().parallel_for((count + piece - 1) / piece, [&](std::int64_t i) {
    part(i * piece, std::min(count, (i + 1) * piece));
  });
}

// Of one head, for one query: scores has a place for each key.
void attend(const float* q, const Rows& k, const Rows& v, int first, int width,
            std::span<float> scores, float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  float largest = -INFINITY;
  for (int key = 0; key < k.num_rows; ++key) {
    const float* at = k.row(key) + first;
    float sum = 0;
    for (int c = 0; c < width; ++c) sum += q[c] * at[c];
    scores[static_cast<std::size_t>(key)] = sum * scale;
    largest = std::max(largest, sum * scale);
  }
  double total = 0;
  for (float& score : scores) {
    score = std::exp(score - largest);
    total += double{score};
  }
  for (int key = 0; key < v.num_rows; ++key) {
    const float share = scores[static_cast<std::size_t>(key)] / static_cast<float>(total);
    const float* at = v.row(key) + first;
    for (int c = 0; c < width; ++c) out[c] += share * at[c];
  }
}

}  // namespace

FloatOps::FloatOps(std::unique_ptr<Kernels> kernels, std::unique_ptr<Stream> stream)
    : kernels_(std::move(kernels)), stream_(std::move(stream)) {}

StatusOr<std::unique_ptr<FloatOps>> FloatOps::create(Device& device) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels,
                           make_kernels(device, Compute::kFloat32));
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.create_stream("refiner"));
  return std::unique_ptr<FloatOps>(new FloatOps(std::move(kernels), std::move(stream)));
}

StatusOr<Rows> FloatOps::linear(const Rows& x, const FloatProduct& product) {
  GAPLESS_CHECK(x.width == product.in);
  Rows y = Rows::zeros(x.num_rows, product.out);
  const LinearWeights weights{.weight = product.weight.data(),
                              .bias = product.bias.empty() ? nullptr : product.bias.data(),
                              .in = product.in,
                              .out = product.out};
  GAPLESS_RETURN_IF_ERROR(kernels_->linear(
      *stream_, dense_linear(*kernels_, x.values.data(), weights, y.values.data(), x.num_rows)));
  GAPLESS_RETURN_IF_ERROR(stream_->synchronize());
  return y;
}

Status FloatOps::layer_norm(Rows& x, const FloatNorm& norm) {
  const NormWeights weights{.gamma = norm.gamma.data(), .beta = norm.beta.data(), .eps = kNormEps};
  GAPLESS_RETURN_IF_ERROR(kernels_->norm(
      *stream_, dense_norm(x.values.data(), weights, x.values.data(), x.width, x.num_rows)));
  return stream_->synchronize();
}

StatusOr<Rows> FloatOps::attention(const FloatAttention& weights, int num_heads, const Rows& q,
                                   const Rows& k, const Rows& v) {
  GAPLESS_ASSIGN_OR_RETURN(const Rows queries, linear(q, weights.q));
  GAPLESS_ASSIGN_OR_RETURN(const Rows keys, linear(k, weights.k));
  GAPLESS_ASSIGN_OR_RETURN(const Rows values, linear(v, weights.v));
  Rows attended = Rows::zeros(queries.num_rows, queries.width);
  const int width = queries.width / num_heads;
  in_pieces(queries.num_rows, 32, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> scores(static_cast<std::size_t>(keys.num_rows));
    for (int i = static_cast<int>(begin); i < end; ++i) {
      for (int head = 0; head < num_heads; ++head) {
        attend(queries.row(i) + head * width, keys, values, head * width, width, scores,
               attended.row(i) + head * width);
      }
    }
  });
  return linear(attended, weights.out);
}

StatusOr<Rows> FloatOps::convolution(const Rows& x, int side, int stride,
                                     const FloatProduct& product) {
  const int channels = x.width, new_side = convolved_side(side, stride);
  GAPLESS_CHECK(x.num_rows == side * side && product.in == 9 * channels);
  Rows result = Rows::zeros(new_side * new_side, product.out);
  // A band of lines at a time, so that the unfolded pixels stay small.
  constexpr int kBandPixels = 4096;
  const int band = std::max(1, kBandPixels / new_side);
  for (int top = 0; top < new_side; top += band) {
    const int num_lines = std::min(band, new_side - top);
    Rows unfolded = Rows::zeros(num_lines * new_side, product.in);
    in_pieces(num_lines, 1, [&](std::int64_t line, std::int64_t) {
      for (int column = 0; column < new_side; ++column) {
        float* to = unfolded.row(static_cast<int>(line) * new_side + column);
        for (int tap = 0; tap < 9; ++tap, to += channels) {
          const int from_y = (top + static_cast<int>(line)) * stride + tap / 3 - 1;
          const int from_x = column * stride + tap % 3 - 1;
          if (from_y < 0 || from_y >= side || from_x < 0 || from_x >= side) continue;
          std::memcpy(to, x.row(from_y * side + from_x),
                      static_cast<std::size_t>(channels) * sizeof(float));
        }
      }
    });
    GAPLESS_ASSIGN_OR_RETURN(const Rows lines, linear(unfolded, product));
    std::ranges::copy(lines.values, result.row(top * new_side));
  }
  return result;
}

StatusOr<Rows> FloatOps::transposed_convolution(const Rows& x, int side,
                                                const FloatProduct& product,
                                                std::span<const float> bias) {
  GAPLESS_CHECK(x.num_rows == side * side);
  GAPLESS_ASSIGN_OR_RETURN(const Rows fours, linear(x, product));
  const int out = product.out / 4;
  Rows result = Rows::zeros(4 * x.num_rows, out);
  for (int pixel = 0; pixel < x.num_rows; ++pixel) {
    for (int part = 0; part < 4; ++part) {
      const int to_y = 2 * (pixel / side) + part / 2, to_x = 2 * (pixel % side) + part % 2;
      const float* from = fours.row(pixel) + part * out;
      float* to = result.row(to_y * 2 * side + to_x);
      for (int c = 0; c < out; ++c) to[c] = from[c] + bias[static_cast<std::size_t>(c)];
    }
  }
  return result;
}

void gelu(Rows& x) {
  in_pieces(std::ssize(x.values), 16384, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float& value = x.values[static_cast<std::size_t>(i)];
      value = 0.5f * value * (1.0f + std::erf(value * 0.70710678f));
    }
  });
}

void group_norm(Rows& x, int num_groups, const FloatNorm& norm) {
  const int width = x.width / num_groups;
  in_pieces(num_groups, 1, [&](std::int64_t group, std::int64_t) {
    const int first = static_cast<int>(group) * width;
    double sum = 0, squares = 0;
    for (int i = 0; i < x.num_rows; ++i) {
      for (int c = first; c < first + width; ++c) {
        const double value = x.row(i)[c];
        sum += value;
        squares += value * value;
      }
    }
    const double count = static_cast<double>(x.num_rows) * width, mean = sum / count;
    const double variance = std::max(0.0, squares / count - mean * mean);
    const double scale = 1 / std::sqrt(variance + double{kNormEps});
    for (int i = 0; i < x.num_rows; ++i) {
      for (int c = first; c < first + width; ++c) {
        const auto at = static_cast<std::size_t>(c);
        float& value = x.row(i)[c];
        value = static_cast<float>((value - mean) * scale) * norm.gamma[at] + norm.beta[at];
      }
    }
  });
}

Rows sum_of(const Rows& a, const Rows& b) {
  GAPLESS_CHECK(a.num_rows == b.num_rows && a.width == b.width);
  Rows sum = a;
  for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += b.values[i];
  return sum;
}

Rows resize_bilinear(const Rows& x, int side, int new_side) {
  GAPLESS_CHECK(x.num_rows == side * side);
  Rows resized = Rows::zeros(new_side * new_side, x.width);
  const std::vector<BilinearTap> taps = bilinear_taps(side, new_side);
  in_pieces(new_side, 8, [&](std::int64_t begin, std::int64_t end) {
    for (auto y = static_cast<std::size_t>(begin); y < static_cast<std::size_t>(end); ++y) {
      for (std::size_t column = 0; column < taps.size(); ++column) {
        float* to = resized.row(static_cast<int>(y * taps.size() + column));
        for (int c = 0; c < x.width; ++c) {
          to[c] = sample_bilinear(taps[column], taps[y], [&](int from_x, int from_y) {
            return x.row(from_y * side + from_x)[c];
          });
        }
      }
    }
  });
  return resized;
}

}  // namespace gapless
