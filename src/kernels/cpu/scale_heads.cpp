#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/tau_position.h"

namespace gapless::cpu {
namespace {

// Tokens of which the activated queries, keys and values are kept at once.
constexpr int kMaxTokens = 256;

void activate(const VectorOps& ops, Activation activation, float* values, std::int64_t count) {
  switch (activation) {
    case Activation::kGeluTanh:
      return ops.gelu_tanh(values, count);
    case Activation::kGeluErf:
      return ops.gelu_erf(values, count);
    case Activation::kNone:
    case Activation::kSilu:
      GAPLESS_CHECK_MSG(false, "scale_heads: a GELU is expected");
  }
}

// t: one token's [2 * num_heads], before the tanh.
void scale_token(const ScaleHeadsParams& params, std::int64_t token, const float* t) {
  const AttentionHeads& heads = params.heads;
  const auto* alpha = static_cast<const float*>(params.scales.alpha);
  float* const q = static_cast<float*>(params.qkv) + token * params.qkv_stride;
  float* const planes[] = {q, q + heads.q_width() + heads.kv_width()};  // q and v
  for (int h = 0; h < heads.num_heads; ++h) {
    const float by_position =
        tau_position(alpha[h], params.positions[token], params.scales.bf16_positions);
    for (int plane = 0; plane < 2; ++plane) {
      const float scale = std::tanh(t[plane * heads.num_heads + h]) + by_position;
      float* head = planes[plane] + h * heads.head_dim;
      for (int i = 0; i < heads.head_dim; ++i) head[i] *= scale;
    }
  }
}

// Tokens [begin, end).
void scale_some(const VectorOps& ops, const ScaleHeadsParams& params, std::int64_t begin,
                std::int64_t end) {
  const int width = params.heads.qkv_width(), num_scales = params.scales.products.out;
  const std::int64_t count = end - begin;
  float* const u = static_cast<float*>(params.scratch);
  float* const t = u + count * width;
  const auto over_tokens = [&](const auto& work) {
    constexpr std::int64_t kTokens = 8, kMinParallel = 16;
    if (count < kMinParallel) {
      for (std::int64_t i = 0; i < count; ++i) work(i);
      return;
    }
    ThreadPool::shared().parallel_for((count + kTokens - 1) / kTokens, [&](std::int64_t task) {
      const std::int64_t last = std::min((task + 1) * kTokens, count);
      for (std::int64_t i = task * kTokens; i < last; ++i) work(i);
    });
  };
  over_tokens([&](std::int64_t i) {
    std::memcpy(u + i * width,
                static_cast<const float*>(params.qkv) + (begin + i) * params.qkv_stride,
                static_cast<std::size_t>(width) * sizeof(float));
    activate(ops, params.scales.activation, u + i * width, width);
  });
  linear(ops, {.x = u,
               .x_stride = width,
               .weights = params.scales.products,
               .y = t,
               .y_stride = num_scales,
               .num_rows = static_cast<int>(count)});
  over_tokens([&](std::int64_t i) { scale_token(params, begin + i, t + i * num_scales); });
}

}  // namespace

std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads) {
  return static_cast<std::size_t>(std::min(max_tokens, kMaxTokens)) *
         static_cast<std::size_t>(heads.qkv_width() + 2 * heads.num_heads) * sizeof(float);
}

void scale_heads(const VectorOps& ops, const ScaleHeadsParams& params) {
  for (std::int64_t begin = 0; begin < params.num_tokens; begin += kMaxTokens) {
    scale_some(ops, params, begin, std::min<std::int64_t>(begin + kMaxTokens, params.num_tokens));
  }
}

}  // namespace gapless::cpu
