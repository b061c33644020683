// Scales of query and value heads (ScaleHeadsParams). Many tokens: two launches around a product, activated rows and the
// scaling. The few of a decode step: one launch that makes parts of the products' sums, which rope_and_cache
// (kv_cache.cu) adds up and scales by.
#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/tau_position.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxHeads = 256;

// Blocks: x = token, y = part of its row.
__global__ void __launch_bounds__(kThreads) activate_heads_kernel(ScaleHeadsParams p, Bf16* u) {
  let_successor_start();
  wait_for_predecessor();
  const int width = p.heads.qkv_width();
  const int at = (blockIdx.y * kThreads + threadIdx.x) * kVector;
  if (at >= width) return;
  float values[kVector];
  load_vector(static_cast<const Bf16*>(p.qkv) + blockIdx.x * p.qkv_stride + at, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = activate(p.scales.activation, values[i]);
  store_vector(u + std::int64_t{blockIdx.x} * width + at, values);
}

// One block per token. t: [num_tokens, 2 * num_heads], before the tanh.
__global__ void __launch_bounds__(kThreads) scale_heads_kernel(ScaleHeadsParams p, const Bf16* t) {
  __shared__ float by_position[kMaxHeads];
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t token = blockIdx.x;
  const int num_heads = p.heads.num_heads, head_dim = p.heads.head_dim;
  const auto* alpha = static_cast<const Bf16*>(p.scales.alpha);
  for (int h = threadIdx.x; h < num_heads; h += kThreads) {
    by_position[h] =
        tau_position(__bfloat162float(alpha[h]), p.positions[token], p.scales.bf16_positions);
  }
  __syncthreads();
  Bf16* const q = static_cast<Bf16*>(p.qkv) + token * p.qkv_stride;
  const int per_head = head_dim / kVector;
  for (int i = threadIdx.x; i < 2 * num_heads * per_head; i += kThreads) {
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

// A block of the parts' kernel: so many columns, of so many tokens' rows, by all rows of W. How columns are cut depends on
// nothing else, so a token's sums do not depend on the batch.
constexpr int kPartColumns = 128, kPartTokens = 16, kPartWarps = 4;
constexpr int kPartSteps = kPartColumns / kStepColumns;
constexpr int kPartTileRows = 16;
// Rows of u lie 64 bytes further on in the banks than the row before (multiply_step reads 64 bytes of each of two rows).
constexpr int kPartPitch = kPartColumns + 32;

// Blocks: x = part of the columns, y = tokens.
__global__ void __launch_bounds__(kPartWarps* kWarp)
    head_scale_parts_kernel(ScaleHeadsParams p, float* parts) {
  __shared__ alignas(16) Bf16 u[kPartTokens][kPartPitch];
  let_successor_start();
  const int width = p.heads.qkv_width(), num_sums = 2 * p.heads.num_heads;
  const int begin = blockIdx.x * kPartColumns, first_token = blockIdx.y * kPartTokens;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto* const weights = static_cast<const Bf16*>(p.scales.products.weight);
  uint4 low[kPartSteps], high[kPartSteps];
  const auto load_weights = [&](int tile) {
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
      const int row = tile * kPartTileRows + lane / 4;
      const int column = begin + s * kStepColumns + lane % 4 * kVector;
      const auto load = [&](int r) {
        const bool valid = r < num_sums && column < width;
        return valid ? *reinterpret_cast<const uint4*>(weights + std::int64_t{r} * width + column)
                     : uint4{};
      };
      low[s] = load(row), high[s] = load(row + kPartTileRows / 2);
    }
  };
  load_weights(warp);  // no step writes them
  wait_for_predecessor();
  constexpr int kVectors = kPartColumns / kVector;
  for (int i = threadIdx.x; i < kPartTokens * kVectors; i += kPartWarps * kWarp) {
    const int token = first_token + i / kVectors, column = begin + i % kVectors * kVector;
    float values[kVector] = {};
    if (token < p.num_tokens && column < width) {
      load_vector(static_cast<const Bf16*>(p.qkv) + token * p.qkv_stride + column, values);
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) values[v] = activate(p.scales.activation, values[v]);
    store_vector(&u[i / kVectors][i % kVectors * kVector], values);
  }
  __syncthreads();
  for (int tile = warp; tile * kPartTileRows < num_sums; tile += kPartWarps) {
    if (tile != warp) load_weights(tile);
    float sums[kPartTokens / 8][4] = {};
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
#pragma unroll
      for (int n = 0; n < kPartTokens / 8; ++n) {
        const Bf16* const x = &u[n * 8 + lane / 4][s * kStepColumns + lane % 4 * kVector];
        multiply_step(sums[n], low[s], high[s], *reinterpret_cast<const uint4*>(x));
      }
    }
#pragma unroll
    for (int n = 0; n < kPartTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = tile * kPartTileRows + lane / 4 + i / 2 * 8;
        const int token = first_token + n * 8 + lane % 4 * 2 + i % 2;
        if (row >= num_sums || token >= p.num_tokens) continue;
        parts[(std::int64_t{token} * gridDim.x + blockIdx.x) * num_sums + row] = sums[n][i];
      }
    }
  }
}

int num_scale_parts(const AttentionHeads& heads) {
  return static_cast<int>(blocks_for(heads.qkv_width(), kPartColumns));
}

}  // namespace

std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads) {
  const auto num_sums = static_cast<std::size_t>(2 * heads.num_heads);
  const std::size_t products = static_cast<std::size_t>(max_tokens) *
                               (static_cast<std::size_t>(heads.qkv_width()) + num_sums) *
                               sizeof(Bf16);
  const std::size_t parts = static_cast<std::size_t>(std::min(max_tokens, kMaxSeats)) *
                            static_cast<std::size_t>(num_scale_parts(heads)) * num_sums *
                            sizeof(float);
  return std::max(products, parts);
}

bool can_sum_head_scales(const ScaleHeadsParams& params) {
  return params.num_tokens > 0 && params.num_tokens <= kMaxSeats &&
         params.heads.head_dim % kVector == 0 && params.qkv_stride % kVector == 0;
}

StatusOr<HeadScaleSums> sum_head_scales(Stream& stream, const ScaleHeadsParams& params) {
  auto* const parts = static_cast<float*>(params.scratch);
  const int num_parts = num_scale_parts(params.heads);
  GAPLESS_RETURN_IF_ERROR(launch(
      "head_scale_parts", stream,
      {.grid = dim3(static_cast<unsigned>(num_parts), blocks_for(params.num_tokens, kPartTokens)),
       .block = dim3(kPartWarps * kWarp)},
      head_scale_parts_kernel, params, parts));
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
                              blocks_for(params.heads.qkv_width(), kThreads * kVector)),
                 .block = dim3(kThreads)},
                activate_heads_kernel, params, static_cast<Bf16*>(u));
}

Status scale_heads(Stream& stream, const ScaleHeadsParams& params, const void* t) {
  return launch("scale_heads", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_tokens)), .block = dim3(kThreads)},
                scale_heads_kernel, params, static_cast<const Bf16*>(t));
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
