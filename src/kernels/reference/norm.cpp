#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

void layer_norm(const LayerNormParams& params) {
  const auto* gamma = static_cast<const float*>(params.gamma);
  const auto* beta = static_cast<const float*>(params.beta);
  const int dim = params.dim;

  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    const float* x = static_cast<const float*>(params.x) + r * params.x_stride;
    float* y = static_cast<float*>(params.y) + r * params.y_stride;
    double mean = 0;
    for (int i = 0; i < dim; ++i) mean += x[i];
    mean /= dim;
    double variance = 0;
    for (int i = 0; i < dim; ++i) variance += (x[i] - mean) * (x[i] - mean);
    variance /= dim;
    const double scale = 1.0 / std::sqrt(variance + params.eps);
    for (int i = 0; i < dim; ++i) {
      y[i] = static_cast<float>((x[i] - mean) * scale * gamma[i] + beta[i]);
    }
  }
  if (params.y_scales != nullptr) {
    rows_to_fp8({.x = params.y,
                 .x_stride = params.y_stride,
                 .y = params.y,
                 .y_stride = params.y_stride,
                 .scales = params.y_scales,
                 .num_rows = params.num_rows,
                 .dim = dim});
  }
}

}  // namespace gapless::reference
