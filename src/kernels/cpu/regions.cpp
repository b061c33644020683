#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

// One head for all rows of a step that ask for it: its weights are read once.
class RegionHead {
 public:
  RegionHead(const VectorOps& ops, const DecodeRegionsParams& params, std::int32_t token,
             const LinearWeights& fc1, const LinearWeights& fc2)
      : ops_(ops), p_(params), fc1_(fc1), fc2_(fc2) {
    hidden_ = static_cast<float*>(params.scratch);
    rows_ = reinterpret_cast<std::int32_t*>(hidden_ + std::int64_t{params.num_rows} *
                                                          (params.dim + fc1.out + fc2.out));
    for (std::int32_t i = 0; i < params.num_rows; ++i) {
      if (asks(i, token)) rows_[num_rows_++] = i;
    }
    inner_ = hidden_ + std::int64_t{num_rows_} * params.dim;
    logits_ = inner_ + std::int64_t{num_rows_} * fc1.out;
  }

  // use(row of the step, its logits)
  template <typename Use>
  void run(const Use& use) const {
    if (num_rows_ == 0) return;
    gather();
    normalise();
    const void* x = hidden_;
    if (fc1_.out > 0) {
      multiply(x, fc1_, inner_, ops_.dtype, Activation::kGeluTanh);
      x = inner_;
    }
    multiply(x, fc2_, logits_, DType::kF32, Activation::kNone);
    for (std::int64_t i = 0; i < num_rows_; ++i) use(rows_[i], logits_ + i * fc2_.out);
  }

 private:
  bool asks(std::int32_t i, std::int32_t token) const {
    if (p_.rows[i] < 0 || p_.tokens[i] != token) return false;
    const RowState& row = p_.row_states[p_.rows[i]];
    return row.done == 0 && (row.flags & kRowDecodesRegions) != 0;
  }

  void gather() const {
    const std::size_t row_bytes = static_cast<std::size_t>(p_.dim) * dtype_bytes(ops_.dtype);
    for (std::size_t i = 0; i < static_cast<std::size_t>(num_rows_); ++i) {
      std::memcpy(
          reinterpret_cast<std::byte*>(hidden_) + i * row_bytes,
          static_cast<const std::byte*>(p_.hidden) + static_cast<std::size_t>(rows_[i]) * row_bytes,
          row_bytes);
    }
  }

  void normalise() const {
    for (const NormWeights& one : p_.weights.norms) {
      if (one.gamma == nullptr) continue;
      ops_.norm_rows({.x = hidden_,
                      .x_stride = p_.dim,
                      .weights = one,
                      .y = hidden_,
                      .y_stride = p_.dim,
                      .num_rows = num_rows_,
                      .dim = p_.dim},
                     0, num_rows_);
    }
  }

  void multiply(const void* x, const LinearWeights& weights, void* y, DType y_dtype,
                Activation activation) const {
    linear(ops_, {.x = x,
                  .x_stride = weights.in,
                  .weights = weights,
                  .y = y,
                  .y_stride = weights.out,
                  .y_dtype = y_dtype,
                  .num_rows = num_rows_,
                  .activation = activation,
                  .decode = true});
  }

  const VectorOps& ops_;
  const DecodeRegionsParams& p_;
  const LinearWeights &fc1_, &fc2_;
  std::int32_t* rows_;
  int num_rows_ = 0;
  // In scratch, a row behind the other; elements of T take no more than these.
  float *hidden_, *inner_, *logits_;
};

int argmax(const float* values, int count) {
  return static_cast<int>(std::max_element(values, values + count) - values);
}

// nullptr: the row does not ask.
TokenConfidence* confidence_of(const DecodeRegionsParams& params, std::int32_t i) {
  const bool asks = (params.row_states[params.rows[i]].flags & kRowWantsConfidence) != 0;
  return asks ? params.confidences + i : nullptr;
}

}  // namespace

std::size_t region_scratch_bytes(int max_rows, int dim, int inner_dim, int max_out) {
  return static_cast<std::size_t>(max_rows) *
         (sizeof(std::int32_t) +
          static_cast<std::size_t>(dim + inner_dim + max_out) * sizeof(float));
}

void decode_regions(const VectorOps& ops, const DecodeRegionsParams& params) {
  const RegionDecoderWeights& weights = params.weights;
  const RegionHead coord(ops, params, params.coord_id, weights.coord_fc1, weights.coord_fc2);
  coord.run([&](std::int32_t i, const float* logits) {
    const int num_bins = weights.coord_fc2.out;
    float* values = params.values + std::int64_t{i} * 2;
    values[0] =
        reference::coordinate_of_bin(argmax(logits, num_bins), num_bins, params.coord_divisor);
    values[1] = 0;
    if (TokenConfidence* const confidence = confidence_of(params, i)) {
      confidence->x = reference::confidence_of_best(logits, num_bins);
      confidence->y = 0;
    }
  });
  // In the same scratch.
  const RegionHead size(ops, params, params.size_id, weights.size_fc1, weights.size_fc2);
  size.run([&](std::int32_t i, const float* logits) {
    const int num_bins = weights.size_fc2.out / 2;
    float* values = params.values + std::int64_t{i} * 2;
    values[0] = reference::size_of_bin(argmax(logits, num_bins), num_bins, params.linear_sizes);
    values[1] =
        reference::size_of_bin(argmax(logits + num_bins, num_bins), num_bins, params.linear_sizes);
    if (TokenConfidence* const confidence = confidence_of(params, i)) {
      confidence->x = reference::confidence_of_best(logits, num_bins);
      confidence->y = reference::confidence_of_best(logits + num_bins, num_bins);
    }
  });
}

}  // namespace gapless::cpu
