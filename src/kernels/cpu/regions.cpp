#include <algorithm>
#include <cstddef>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

// One row's hidden state after the norms, in scratch where there are any.
const void* normalised(const VectorOps& ops, const void* hidden,
                       const RegionDecoderWeights& weights, int dim, float* scratch) {
  for (const NormWeights& one : weights.norms) {
    if (one.gamma == nullptr) continue;
    ops.norm_rows({.x = hidden,
                   .x_stride = dim,
                   .weights = one,
                   .y = scratch,
                   .y_stride = dim,
                   .num_rows = 1,
                   .dim = dim},
                  0, 1);
    hidden = scratch;
  }
  return hidden;
}

// The logits, in scratch.
const float* region_logits(const VectorOps& ops, const void* x, const LinearWeights& fc1,
                           const LinearWeights& fc2, float* scratch) {
  float* inner = scratch;
  float* logits = scratch + fc1.out;
  if (fc1.out > 0) {
    linear(ops, {.x = x,
                 .x_stride = fc1.in,
                 .weights = fc1,
                 .y = inner,
                 .y_stride = fc1.out,
                 .y_dtype = ops.dtype,
                 .num_rows = 1,
                 .activation = Activation::kGeluTanh});
    x = inner;
  }
  linear(ops, {.x = x,
               .x_stride = fc2.in,
               .weights = fc2,
               .y = logits,
               .y_stride = fc2.out,
               .y_dtype = DType::kF32,
               .num_rows = 1});
  return logits;
}

int argmax(const float* values, int count) {
  return static_cast<int>(std::max_element(values, values + count) - values);
}

}  // namespace

std::size_t region_scratch_bytes(int dim, int inner_dim, int max_out) {
  return static_cast<std::size_t>(dim + inner_dim + max_out) * sizeof(float);
}

void decode_regions(const VectorOps& ops, const DecodeRegionsParams& params) {
  const RegionDecoderWeights& weights = params.weights;
  auto* const normed = static_cast<float*>(params.scratch);
  float* const scratch = normed + params.dim;
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    if (params.rows[i] < 0) continue;
    const RowState& row = params.row_states[params.rows[i]];
    if (row.done != 0 || (row.flags & kRowDecodesRegions) == 0) continue;
    if (params.tokens[i] != params.coord_id && params.tokens[i] != params.size_id) continue;
    const std::int64_t row_bytes =
        std::int64_t{params.dim} * static_cast<int>(dtype_bytes(ops.dtype));
    const void* hidden =
        normalised(ops, static_cast<const std::byte*>(params.hidden) + i * row_bytes, weights,
                   params.dim, normed);
    float* values = params.values + i * 2;
    TokenConfidence* const confidence =
        (row.flags & kRowWantsConfidence) != 0 ? params.confidences + i : nullptr;
    if (params.tokens[i] == params.coord_id) {
      const int num_bins = weights.coord_fc2.out;
      const float* logits =
          region_logits(ops, hidden, weights.coord_fc1, weights.coord_fc2, scratch);
      values[0] =
          reference::coordinate_of_bin(argmax(logits, num_bins), num_bins, params.coord_divisor);
      values[1] = 0;
      if (confidence != nullptr) {
        confidence->x = reference::confidence_of_best(logits, num_bins);
        confidence->y = 0;
      }
    } else {
      const int num_bins = weights.size_fc2.out / 2;
      const float* logits = region_logits(ops, hidden, weights.size_fc1, weights.size_fc2, scratch);
      values[0] = reference::size_of_bin(argmax(logits, num_bins), num_bins, params.linear_sizes);
      values[1] = reference::size_of_bin(argmax(logits + num_bins, num_bins), num_bins,
                                         params.linear_sizes);
      if (confidence != nullptr) {
        confidence->x = reference::confidence_of_best(logits, num_bins);
        confidence->y = reference::confidence_of_best(logits + num_bins, num_bins);
      }
    }
  }
}

}  // namespace gapless::cpu
