#include <cmath>
#include <numbers>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

double silu(double x) {
  return x / (1 + std::exp(-x));
}

double gelu_erf(double x) {
  return 0.5 * x * (1 + std::erf(x * std::numbers::sqrt2 / 2));
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
      return silu(x);
    case Activation::kGeluErf:
      return gelu_erf(x);
  }
  return x;
}

void gate(const GateParams& params) {
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    const float* x = static_cast<const float*>(params.x) + r * params.x_stride;
    float* y = static_cast<float*>(params.y) + r * params.y_stride;
    for (int i = 0; i < params.dim; ++i) {
      const double up = double{x[params.dim + i]} + params.up_offset;
      y[i] = static_cast<float>(activate(params.activation, x[i]) * up);
    }
  }
}

}  // namespace gapless::reference
