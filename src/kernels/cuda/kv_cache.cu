// Into and inside the paged cache: scale, rotate and store, copy pages.
#include <algorithm>
#include <type_traits>

#include "base/host_device.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/tau_position.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kCacheThreads = 128;
constexpr int kCopyThreads = 256;

// Tokens of a thread. It loads its part of all of them before it computes: memory is far away, and
// there is little to compute.
constexpr int kTokens = 4;

// kPack neighbouring elements as they lie in memory.
template <int kPack>
struct Pack {
  using Raw = std::conditional_t<kPack == kVector, uint4, Bf16>;

  __device__ static Raw load(const Bf16* from) { return *reinterpret_cast<const Raw*>(from); }
  __device__ static void unpack(const Raw& raw, float (&values)[kPack]) {
    if constexpr (kPack == kVector) {
      gapless::unpack(raw, values);
    } else {
      values[0] = __bfloat162float(raw);
    }
  }
  template <typename Element>
  __device__ static void store(const float (&values)[kPack], Element* to) {
    if constexpr (kPack == kVector) {
      using Vector = KvVector<Element>;
      *reinterpret_cast<typename Vector::Raw*>(to) = Vector::pack(values);
    } else {
      store_kv_element(to, values[0]);
    }
  }
};

// Pairs (a[j], b[j]) turned by the angles table[2j], table[2j + 1] = cos, sin.
template <int kPack>
__device__ void rotate(float (&a)[kPack], float (&b)[kPack], const float* table) {
  using Load = std::conditional_t<kPack == kVector, float4, float2>;
  constexpr int kLoads = 2 * kPack * sizeof(float) / sizeof(Load);
  Load loads[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) loads[i] = __ldg(reinterpret_cast<const Load*>(table) + i);
  const float* angles = reinterpret_cast<const float*>(loads);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float cosine = angles[2 * i], sine = angles[2 * i + 1];
    const float real = a[i] * cosine - b[i] * sine;
    b[i] = a[i] * sine + b[i] * cosine;
    a[i] = real;
  }
}

// What a thread has of each token: kPack elements of a head, or for what is rotated kPack pairs.
// Parts of a head, in order: rotations of q, rotations of k, the rest of k, v; and where q is scaled its rest.
template <int kPack, bool kScales>
struct HeadPart {
  int plane;  // 0: q, 1: k, 2: v
  int first;  // element
  bool rotates;

  // 2 * rotations + rest + those of v, and the rest of q.
  GAPLESS_HOST_DEVICE static int count(const RopeAndCacheParams& p) {
    const int q_rest = kScales ? p.heads.head_dim - p.rotary_dim : 0;
    return (2 * p.heads.head_dim + q_rest) / kPack;
  }
  __device__ HeadPart(const RopeAndCacheParams& p, int index) {
    const int rotations = p.rotary_dim / 2 / kPack,
              rest = (p.heads.head_dim - p.rotary_dim) / kPack;
    rotates = index < 2 * rotations;
    if (rotates) {
      plane = index / rotations;
      first = index % rotations * kPack;
      return;
    }
    index -= 2 * rotations;
    const int in_cache = rest + p.heads.head_dim / kPack;
    if (kScales && index >= in_cache) {
      plane = 0;
      first = p.rotary_dim + (index - in_cache) * kPack;
      return;
    }
    plane = index < rest ? 1 : 2;
    first = index < rest ? p.rotary_dim + index * kPack : (index - rest) * kPack;
  }
};

// Scales of the heads that a block has to do with, of its tokens, for queries and for values. A head has two parts
// at least.
struct BlockScales {
  static constexpr int kHeads = kCacheThreads / 2 + 2;
  float values[kTokens * kHeads * 2];
  float halves[kTokens * kHeads * 2][2];  // of the sums

  // `num_heads`: of the block.
  __device__ static int index(int token, int head, int plane, int num_heads) {
    return (token * num_heads + head) * 2 + plane;
  }
};

// All threads of the block.
__device__ void find_scales(const RopeAndCacheParams& p, const HeadScaleSums& s, int first_token,
                            int first_head, int num_heads, BlockScales& scales) {
  const int num_tokens = min(kTokens, p.num_tokens - first_token), all_heads = p.heads.num_heads;
  const int num_scales = num_tokens * num_heads * 2;
  // Two threads for each scale, so that more of the parts are on their way at once.
  const int first_parts = s.num_parts / 2;
  for (int i = threadIdx.x; i < num_scales * 2; i += kCacheThreads) {
    const int which = i % num_scales, half = i / num_scales;
    const int token = first_token + which / (num_heads * 2);
    const int head = first_head + which / 2 % num_heads, column = which % 2 * all_heads + head;
    const int begin = half == 0 ? 0 : first_parts, end = half == 0 ? first_parts : s.num_parts;
    const float* const parts = s.parts + std::int64_t{token} * s.num_parts * 2 * all_heads + column;
    float sum = 0;
#pragma unroll 12
    for (int part = begin; part < end; ++part) sum += parts[std::int64_t{part} * 2 * all_heads];
    scales.halves[which][half] = sum;
    if (half > 0) continue;
    const float alpha = __bfloat162float(static_cast<const Bf16*>(s.scales.alpha)[head]);
    scales.values[which] = tau_position(alpha, p.positions[token], s.scales.bf16_positions);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_scales; i += kCacheThreads) {
    scales.values[i] += tanhf(round_to_bf16(scales.halves[i][0] + scales.halves[i][1]));
  }
  __syncthreads();
}

// Element: of the cache. kScales: q and v by `s`.
// One block at least: where that is left unsaid, code for 12.0 has registers for more blocks and keeps the rest in memory.
template <int kPack, typename Element, bool kScales>
__global__ void __launch_bounds__(kCacheThreads, 1)
    rope_and_cache_kernel(RopeAndCacheParams p, HeadScaleSums s) {
  wait_for_predecessor();
  let_successor_start();  // in this order: decode_attention.cu and prefill_attention.cu count on it
  using Part = HeadPart<kPack, kScales>;
  const int num_parts = Part::count(p);
  const int first_index = blockIdx.y * kCacheThreads, index = first_index + threadIdx.x;
  const int first_head = first_index / num_parts, first_token = blockIdx.x * kTokens;
  const int head = index / num_parts, half = p.rotary_dim / 2;
  const Part part(p, index % num_parts);
  const bool exists =
      index < p.heads.num_heads * num_parts && (part.plane == 0 || head < p.heads.num_kv_heads);
  const int plane_start = part.plane == 0   ? 0
                          : part.plane == 1 ? p.heads.q_width()
                                            : p.heads.q_width() + p.heads.kv_width();
  Bf16* const rows = static_cast<Bf16*>(p.qkv) + first_token * p.qkv_stride + plane_start +
                     head * p.heads.head_dim + part.first;

  typename Pack<kPack>::Raw raw[kTokens], partners[kTokens];
  int slots[kTokens], positions[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (!exists || first_token + t >= p.num_tokens) break;
    raw[t] = Pack<kPack>::load(rows + t * p.qkv_stride);
    if (part.rotates) partners[t] = Pack<kPack>::load(rows + t * p.qkv_stride + half);
    slots[t] = p.cache_slots[first_token + t];
    positions[t] = p.positions[first_token + t];
  }
  __shared__ std::conditional_t<kScales, BlockScales, char> scales;
  int num_heads = 0;  // of the block
  if constexpr (kScales) {
    const int last_head = (first_index + kCacheThreads - 1) / num_parts;
    num_heads = min(last_head + 1, p.heads.num_heads) - first_head;
    find_scales(p, s, first_token, first_head, num_heads, scales);
  }
  if (!exists) return;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (first_token + t >= p.num_tokens) break;
    float values[kPack], partner[kPack];
    Pack<kPack>::unpack(raw[t], values);
    if (part.rotates) Pack<kPack>::unpack(partners[t], partner);
    if constexpr (kScales) {
      if (part.plane != 1) {
        const float scale =
            scales.values[BlockScales::index(t, head - first_head, part.plane / 2, num_heads)];
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          values[i] = round_to_bf16(values[i] * scale);
          if (part.rotates) partner[i] = round_to_bf16(partner[i] * scale);
        }
      }
    }
    if (part.rotates) {
      rotate<kPack>(values, partner,
                    p.rope_table + (std::int64_t{positions[t]} * half + part.first) * 2);
    }
    const auto store = [&](auto* to) {
      Pack<kPack>::store(values, to);
      if (part.rotates) Pack<kPack>::store(partner, to + half);
    };
    if (part.plane == 0) {
      store(rows + t * p.qkv_stride);
    } else {
      const KvPart in_cache = part.plane == 1 ? KvPart::kKeys : KvPart::kValues;
      store(static_cast<Element*>(p.kv.pages) + p.heads.kv_layout().at(in_cache, slots[t], head) +
            part.first);
    }
  }
}

// The q and k heads of every token, in place, one warp each. Blocks: x = token, y = some heads.
__global__ void __launch_bounds__(kCacheThreads) norm_heads_kernel(RopeAndCacheParams p) {
  let_successor_start();
  wait_for_predecessor();
  const int lane = threadIdx.x % kWarp;
  const int head = blockIdx.y * (kCacheThreads / kWarp) + threadIdx.x / kWarp;
  if (head >= p.heads.num_heads + p.heads.num_kv_heads) return;
  const NormWeights& norm = head < p.heads.num_heads ? p.q_norm : p.k_norm;
  // The heads of k follow those of q.
  Bf16* row = static_cast<Bf16*>(p.qkv) + blockIdx.x * p.qkv_stride + head * p.heads.head_dim;
  float squares = 0;
  for (int i = lane; i < p.heads.head_dim; i += kWarp) {
    const float x = __bfloat162float(row[i]);
    squares += x * x;
  }
  const float scale = rsqrtf(warp_sum(squares) / p.heads.head_dim + norm.eps);
  const auto* gamma = static_cast<const Bf16*>(norm.gamma);
  for (int i = lane; i < p.heads.head_dim; i += kWarp) {
    row[i] = __float2bfloat16_rn(__bfloat162float(row[i]) * scale * __bfloat162float(gamma[i]));
  }
}

// Blocks: x = part of a page, y = layer, z = copy.
__global__ void __launch_bounds__(kCopyThreads) copy_pages_kernel(CopyPagesParams p) {
  let_successor_start();
  wait_for_predecessor();
  const int copy = blockIdx.z;
  if (copy >= *p.num_copies) return;
  const PageCopy pages = p.copies[copy];
  char* layer = static_cast<char*>(p.kv_base) + blockIdx.y * p.num_pages * p.page_bytes;
  const auto* from = reinterpret_cast<const uint4*>(layer + pages.from * p.page_bytes);
  auto* to = reinterpret_cast<uint4*>(layer + pages.to * p.page_bytes);
  const std::int64_t vectors = p.page_bytes / 16;
  for (std::int64_t i = blockIdx.x * kCopyThreads + threadIdx.x; i < vectors;
       i += gridDim.x * kCopyThreads) {
    to[i] = from[i];
  }
}

template <int kPack, typename Element, bool kScales>
Status launch_rope_and_cache(Stream& stream, const RopeAndCacheParams& params,
                             const HeadScaleSums& scales) {
  const int parts = params.heads.num_heads * HeadPart<kPack, kScales>::count(params);
  return launch(
      "rope_and_cache", stream,
      {.grid = dim3(blocks_for(params.num_tokens, kTokens), blocks_for(parts, kCacheThreads)),
       .block = dim3(kCacheThreads)},
      rope_and_cache_kernel<kPack, Element, kScales>, params, scales);
}

template <int kPack, typename Element>
Status rope_and_cache_in_packs(Stream& stream, const RopeAndCacheParams& params,
                               const HeadScaleSums* scales) {
  return scales == nullptr ? launch_rope_and_cache<kPack, Element, false>(stream, params, {})
                           : launch_rope_and_cache<kPack, Element, true>(stream, params, *scales);
}

template <typename Element>
Status rope_and_cache_into(Stream& stream, const RopeAndCacheParams& params,
                           const HeadScaleSums* scales) {
  const bool vectors = params.rotary_dim % (2 * kVector) == 0 &&
                       params.heads.head_dim % kVector == 0 && params.qkv_stride % kVector == 0;
  return vectors ? rope_and_cache_in_packs<kVector, Element>(stream, params, scales)
                 : rope_and_cache_in_packs<1, Element>(stream, params, scales);
}

}  // namespace

Status rope_and_cache(Stream& stream, const RopeAndCacheParams& params,
                      const HeadScaleSums* scales) {
  if (params.q_norm.gamma != nullptr) {
    const int num_heads = params.heads.num_heads + params.heads.num_kv_heads;
    GAPLESS_RETURN_IF_ERROR(launch("norm_heads", stream,
                                   {.grid = dim3(static_cast<unsigned>(params.num_tokens),
                                                 blocks_for(num_heads, kCacheThreads / kWarp)),
                                    .block = dim3(kCacheThreads)},
                                   norm_heads_kernel, params));
  }
  return params.kv.format == KvFormat::kFp8 ? rope_and_cache_into<E4m3>(stream, params, scales)
                                            : rope_and_cache_into<Bf16>(stream, params, scales);
}

Status copy_pages(Stream& stream, const CopyPagesParams& params) {
  if (params.page_bytes % 16 != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "copy_pages: a page must be a multiple of 16 bytes");
  }
  constexpr unsigned kMaxParts = 16;
  const unsigned parts = std::min(kMaxParts, blocks_for(params.page_bytes / 16, kCopyThreads));
  return launch("copy_pages", stream,
                {.grid = dim3(parts, static_cast<unsigned>(params.num_layers),
                              static_cast<unsigned>(params.max_copies)),
                 .block = dim3(kCopyThreads)},
                copy_pages_kernel, params);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
