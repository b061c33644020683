#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"
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

// u = activation(x), a few numbers at a time.
template <typename T>
void activate_row(const VectorOps& ops, Activation activation, const T* x, int size, T* u) {
  constexpr int kChunk = 256;
  for (int begin = 0; begin < size; begin += kChunk) {
    const int count = std::min(kChunk, size - begin);
    float values[kChunk];
    for (int i = 0; i < count; ++i) values[i] = to_float(x[begin + i]);
    activate(ops, activation, values, count);
    for (int i = 0; i < count; ++i) u[begin + i] = rounded<T>(values[i]);
  }
}

// t: one token's [2 * num_heads], before the tanh.
template <typename T>
void scale_token(const ScaleHeadsParams& params, std::int64_t token, const float* t) {
  const AttentionHeads& heads = params.heads;
  const auto* alpha = static_cast<const T*>(params.scales.alpha);
  T* const q = static_cast<T*>(params.qkv) + token * params.qkv_stride;
  T* const planes[] = {q, q + heads.q_width() + heads.kv_width()};  // q and v
  for (int h = 0; h < heads.num_heads; ++h) {
    const float by_position =
        tau_position(to_float(alpha[h]), params.positions[token], params.scales.bf16_positions);
    for (int plane = 0; plane < 2; ++plane) {
      const float scale = std::tanh(t[plane * heads.num_heads + h]) + by_position;
      T* head = planes[plane] + h * heads.head_dim;
      for (int i = 0; i < heads.head_dim; ++i) {
        head[i] = rounded<T>(to_float(head[i]) * scale);
      }
    }
  }
}

// Tokens [begin, end).
template <typename T>
void scale_some(const VectorOps& ops, const ScaleHeadsParams& params, std::int64_t begin,
                std::int64_t end) {
  const int width = params.heads.qkv_width(), num_scales = params.scales.products.out;
  const std::int64_t count = end - begin;
  float* const t = static_cast<float*>(params.scratch);
  T* const u = reinterpret_cast<T*>(t + count * num_scales);
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
    activate_row(ops, params.scales.activation,
                 static_cast<const T*>(params.qkv) + (begin + i) * params.qkv_stride, width,
                 u + i * width);
  });
  linear(ops, {.x = u,
               .x_stride = width,
               .weights = params.scales.products,
               .y = t,
               .y_stride = num_scales,
               .y_dtype = DType::kF32,
               .num_rows = static_cast<int>(count),
               .decode = true});
  over_tokens([&](std::int64_t i) { scale_token<T>(params, begin + i, t + i * num_scales); });
}

}  // namespace

std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads) {
  return static_cast<std::size_t>(std::min(max_tokens, kMaxTokens)) *
         static_cast<std::size_t>(heads.qkv_width() + 2 * heads.num_heads) * sizeof(float);
}

void scale_heads(const VectorOps& ops, const ScaleHeadsParams& params) {
  for (std::int64_t begin = 0; begin < params.num_tokens; begin += kMaxTokens) {
    const std::int64_t end = std::min<std::int64_t>(begin + kMaxTokens, params.num_tokens);
    with_element(ops.dtype, [&]<typename T>() { scale_some<T>(ops, params, begin, end); });
  }
}

}  // namespace gapless::cpu
