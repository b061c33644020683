#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

void norm_row(const NormWeights& weights, const float* x, float* y, int dim) {
  const auto* gamma = static_cast<const float*>(weights.gamma);
  const auto* beta = static_cast<const float*>(weights.beta);
  double mean = 0;
  if (weights.kind == NormKind::kLayer) {
    for (int i = 0; i < dim; ++i) mean += x[i];
    mean /= dim;
  }
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double scale = 1.0 / std::sqrt(squares / dim + weights.eps);
  for (int i = 0; i < dim; ++i) {
    y[i] = static_cast<float>((x[i] - mean) * scale * gamma[i] + (beta == nullptr ? 0 : beta[i]));
  }
}

void norm(const NormParams& params) {
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    float* const y = static_cast<float*>(params.y) + r * params.y_stride;
    norm_row(params.weights, static_cast<const float*>(params.x) + r * params.x_stride, y,
             params.dim);
    if (params.exact_y == nullptr) continue;
    std::copy_n(y, params.dim, static_cast<float*>(params.exact_y) + r * params.dim);
  }
  if (params.y_scales != nullptr) {
    rows_to_fp8({.x = params.y,
                 .x_stride = params.y_stride,
                 .y = params.y,
                 .y_stride = params.y_stride,
                 .scales = params.y_scales,
                 .num_rows = params.num_rows,
                 .dim = params.dim});
  }
}

}  // namespace gapless::reference
