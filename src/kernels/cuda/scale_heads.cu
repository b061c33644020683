// Scales of query and value heads (ScaleHeadsParams). Alone: two launches around a product, activated rows and the
// scaling. Where rope_and_cache follows: one launch that makes parts of the products' sums, which rope_and_cache
// (kv_cache.cu) adds up and scales by.
#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/split_product.h"
#include "kernels/tau_position.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kScaleThreads = 256;
constexpr int kMaxHeads = 256;

// Blocks: x = token, y = part of its row.
__global__ void __launch_bounds__(kScaleThreads)
    activate_heads_kernel(ScaleHeadsParams p, Bf16* u) {
  let_successor_start();
  wait_for_predecessor();
  const int width = p.heads.qkv_width();
  const int at = (blockIdx.y * kScaleThreads + threadIdx.x) * kVector;
  if (at >= width) return;
  float values[kVector];
  load_vector(static_cast<const Bf16*>(p.qkv) + blockIdx.x * p.qkv_stride + at, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = activate(p.scales.activation, values[i]);
  store_vector(u + std::int64_t{blockIdx.x} * width + at, values);
}

// One block per token. t: [num_tokens, 2 * num_heads], before the tanh.
__global__ void __launch_bounds__(kScaleThreads)
    scale_heads_kernel(ScaleHeadsParams p, const Bf16* t) {
  __shared__ float by_position[kMaxHeads];
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t token = blockIdx.x;
  const int num_heads = p.heads.num_heads, head_dim = p.heads.head_dim;
  const auto* alpha = static_cast<const Bf16*>(p.scales.alpha);
  for (int h = threadIdx.x; h < num_heads; h += kScaleThreads) {
    by_position[h] =
        tau_position(__bfloat162float(alpha[h]), p.positions[token], p.scales.bf16_positions);
  }
  __syncthreads();
  Bf16* const q = static_cast<Bf16*>(p.qkv) + token * p.qkv_stride;
  const int per_head = head_dim / kVector;
  for (int i = threadIdx.x; i < 2 * num_heads * per_head; i += kScaleThreads) {
    const int plane = i / (num_heads * per_head), h = i / per_head % num_heads;
    const float by_token = tanhf(__bfloat162float(t[(token * 2 + plane) * num_heads + h]));
    const float scale = by_token + by_position[h];
    Bf16* const at = q + (plane == 0 ? 0 : p.heads.q_width() + p.heads.kv_width()) + h * head_dim +
                     i % per_head * kVector;
    float values[kVector];
    load_vector(at, values);
#pragma unroll
    for (int v = 0; v < kVector; ++v) values[v] *= scale;
    store_vector(at, values);
  }
}

}  // namespace

std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads) {
  const auto num_sums = static_cast<std::size_t>(2 * heads.num_heads);
  const std::size_t products = static_cast<std::size_t>(max_tokens) *
                               (static_cast<std::size_t>(heads.qkv_width()) + num_sums) *
                               sizeof(Bf16);
  const auto parts = [&](int tokens, SplitShape shape) {
    return static_cast<std::size_t>(tokens) *
           static_cast<std::size_t>(num_split_parts(heads.qkv_width(), shape)) * num_sums *
           sizeof(float);
  };
  return std::max({products, parts(std::min(max_tokens, kMaxSeats), SplitShape::kFewRows),
                   parts(max_tokens, SplitShape::kManyRows)});
}

bool can_sum_head_scales(const ScaleHeadsParams& params) {
  return params.num_tokens > 0 && (!params.decode || params.num_tokens <= kMaxSeats) &&
         params.heads.head_dim % kVector == 0 && params.qkv_stride % kVector == 0;
}

StatusOr<HeadScaleSums> sum_head_scales(Stream& stream, const ScaleHeadsParams& params) {
  auto* const parts = static_cast<float*>(params.scratch);
  const SplitShape shape = params.decode ? SplitShape::kFewRows : SplitShape::kManyRows;
  const int num_parts = num_split_parts(params.heads.qkv_width(), shape);
  GAPLESS_RETURN_IF_ERROR(
      split_product(stream,
                    {.x = static_cast<const Bf16*>(params.qkv),
                     .x_stride = params.qkv_stride,
                     .num_rows = params.num_tokens,
                     .activation = params.scales.activation,
                     .weights = static_cast<const Bf16*>(params.scales.products.weight),
                     .in = params.heads.qkv_width(),
                     .out = 2 * params.heads.num_heads,
                     .parts = parts},
                    shape));
  return HeadScaleSums{parts, num_parts, params.scales};
}

Status activate_heads(Stream& stream, const ScaleHeadsParams& params, void* u) {
  if (params.heads.head_dim % kVector != 0 || params.qkv_stride % kVector != 0 ||
      params.heads.num_heads > kMaxHeads) {
    return invalid_argument("scale_heads: {} heads of {}; at most {}, of a multiple of {}",
                            params.heads.num_heads, params.heads.head_dim, kMaxHeads, kVector);
  }
  return launch("activate_heads", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_tokens),
                              blocks_for(params.heads.qkv_width(), kScaleThreads * kVector)),
                 .block = dim3(kScaleThreads)},
                activate_heads_kernel, params, static_cast<Bf16*>(u));
}

Status scale_heads(Stream& stream, const ScaleHeadsParams& params, const void* t) {
  return launch(
      "scale_heads", stream,
      {.grid = dim3(static_cast<unsigned>(params.num_tokens)), .block = dim3(kScaleThreads)},
      scale_heads_kernel, params, static_cast<const Bf16*>(t));
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
