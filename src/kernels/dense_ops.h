// Params of ops on dense rows of type T, and of the same rows in 8 bits; sizes of a feed-forward of experts.
#pragma once

#include "kernels/kernels.h"

namespace gapless {

// y = x W^T + b on dense rows of type T.
inline LinearParams dense_linear(const Kernels& kernels, const void* x,
                                 const LinearWeights& weights, void* y, int num_rows) {
  return {.x = x,
          .x_stride = weights.in,
          .weights = weights,
          .y = y,
          .y_stride = weights.out,
          .y_dtype = kernels.activation_dtype(),
          .num_rows = num_rows};
}

// y = input W^T + b + x. `x` may be y.
inline LinearParams residual_linear(const Kernels& kernels, const void* input,
                                    const LinearWeights& weights, const void* x, void* y,
                                    int num_rows) {
  LinearParams params = dense_linear(kernels, input, weights, y, num_rows);
  params.residual = x;
  params.residual_stride = weights.out;
  params.residual_rows = num_rows;
  return params;
}

inline ExpertSizes expert_sizes(const FeedForward& ff) {
  return {.dim = ff.up.in,
          .inner = ff.inner(),
          .num_experts = ff.num_experts,
          .experts_per_token = ff.experts_per_token};
}

inline NormParams dense_norm(const void* x, const NormWeights& weights, void* y, int dim,
                             int num_rows) {
  return {.x = x,
          .x_stride = dim,
          .weights = weights,
          .y = y,
          .y_stride = dim,
          .num_rows = num_rows,
          .dim = dim};
}

// Elements in 8 bits that take the place of one of type T.
inline std::int64_t fp8_elements_per_t(const Kernels& kernels) {
  return static_cast<std::int64_t>(dtype_bytes(kernels.activation_dtype()) /
                                   kernels.fp8_element_bytes());
}

// Makes a product with weights for 8 bits read its input so: where the input of type T lies, rows
// begin where its rows begin. Other products stay as they are.
inline LinearParams with_fp8_input(const Kernels& kernels, LinearParams params,
                                   const float* row_scales) {
  if (params.weights.fp8 == nullptr) return params;
  params.x_scales = row_scales;
  params.x_stride *= fp8_elements_per_t(kernels);
  return params;
}

// The same for experts; `rows`: the input in 8 bits.
inline ExpertsParams with_fp8_input(const Kernels& kernels, ExpertsParams params, const void* rows,
                                    const float* row_scales) {
  params.x_fp8 = rows;
  params.x_fp8_stride = params.ff.up.in * fp8_elements_per_t(kernels);
  params.x_scales = row_scales;
  return params;
}

// Makes a norm end in 8 bits, as with_fp8_input() reads them.
inline NormParams with_fp8_output(const Kernels& kernels, NormParams params, float* row_scales) {
  params.y_scales = row_scales;
  params.y_stride *= fp8_elements_per_t(kernels);
  return params;
}

// Rows of type T, `stride` elements apart, become rows in 8 bits where they lie.
inline RowsToFp8Params in_place_rows_to_fp8(const Kernels& kernels, void* x, int dim,
                                            std::int64_t stride, float* scales, int num_rows) {
  return {.x = x,
          .x_stride = stride,
          .y = x,
          .y_stride = stride * fp8_elements_per_t(kernels),
          .scales = scales,
          .num_rows = num_rows,
          .dim = dim};
}

}  // namespace gapless
