#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

double gelu_tanh(double x) {
  const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

namespace {

bool is_needed(const StepLogits& needed, std::int64_t column) {
  return needed.all != 0 || std::find(std::begin(needed.tokens), std::end(needed.tokens), column) !=
                                std::end(needed.tokens);
}

}  // namespace

void linear(const LinearParams& params) {
  const auto* x = static_cast<const float*>(params.x);
  // Rows in 8 bits have their scales multiplied in (fp8.cpp).
  const LinearWeights& w = params.weights;
  const auto* weight = static_cast<const float*>(params.x_scales != nullptr ? w.fp8 : w.weight);
  const auto* bias = static_cast<const float*>(params.weights.bias);
  const auto* residual = static_cast<const float*>(params.residual);
  auto* y = static_cast<float*>(params.y);
  const int num_in = params.weights.in;

  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    for (std::int64_t o = 0; o < params.weights.out; ++o) {
      if (params.needed != nullptr && !is_needed(*params.needed, o)) continue;
      double sum = bias != nullptr ? bias[o] : 0.0;
      for (std::int64_t i = 0; i < num_in; ++i) {
        sum += static_cast<double>(x[r * params.x_stride + i]) * weight[o * num_in + i];
      }
      if (params.activation == Activation::kGeluTanh) sum = gelu_tanh(sum);
      if (residual != nullptr) {
        sum += residual[(r % params.residual_rows) * params.residual_stride + o];
      }
      y[r * params.y_stride + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace gapless::reference
