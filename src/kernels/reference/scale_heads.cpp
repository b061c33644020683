#include <cmath>
#include <vector>

#include "kernels/reference/reference_ops.h"
#include "kernels/tau_position.h"

namespace gapless::reference {

void scale_heads(const ScaleHeadsParams& params) {
  const AttentionHeads& heads = params.heads;
  const LinearWeights& products = params.scales.products;
  const auto* alpha = static_cast<const float*>(params.scales.alpha);
  std::vector<float> u(static_cast<std::size_t>(heads.qkv_width()));
  std::vector<float> t(static_cast<std::size_t>(products.out));
  for (std::int64_t token = 0; token < params.num_tokens; ++token) {
    float* qkv = static_cast<float*>(params.qkv) + token * params.qkv_stride;
    for (std::size_t i = 0; i < u.size(); ++i) {
      u[i] = static_cast<float>(activate(params.scales.activation, qkv[i]));
    }
    linear({.x = u.data(),
            .x_stride = products.in,
            .weights = products,
            .y = t.data(),
            .y_stride = products.out,
            .y_dtype = DType::kF32,
            .num_rows = 1});
    float* const planes[] = {qkv, qkv + heads.q_width() + heads.kv_width()};  // q and v
    for (int plane = 0; plane < 2; ++plane) {
      for (int h = 0; h < heads.num_heads; ++h) {
        const double by_token =
            std::tanh(double{t[static_cast<std::size_t>(plane * heads.num_heads + h)]});
        const double scale = by_token + double{tau_position(alpha[h], params.positions[token],
                                                            params.scales.bf16_positions)};
        float* head = planes[plane] + h * heads.head_dim;
        for (int i = 0; i < heads.head_dim; ++i) head[i] = static_cast<float>(head[i] * scale);
      }
    }
  }
}

}  // namespace gapless::reference
