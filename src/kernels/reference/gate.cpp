#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

double silu(double x) {
  return x / (1 + std::exp(-x));
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
      return silu(x);
  }
  return x;
}

void gate(const GateParams& params) {
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    const float* x = static_cast<const float*>(params.x) + r * params.x_stride;
    float* y = static_cast<float*>(params.y) + r * params.y_stride;
    for (int i = 0; i < params.dim; ++i) {
      y[i] = static_cast<float>(activate(params.activation, x[i]) * x[params.dim + i]);
    }
  }
}

}  // namespace gapless::reference
