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

constexpr int kMaxCacheThreads = 512;
constexpr int kMaxRotaryDim = 256;  // where heads are scaled
constexpr int kNormThreads = 128;
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

// Pairs (a[j], b[j]) turned by the angles table[2j], table[2j + 1] = cos, sin. kInShared: they lie in shared memory.
template <int kPack, bool kInShared>
__device__ void rotate(float (&a)[kPack], float (&b)[kPack], const float* table) {
  using Load = std::conditional_t<kPack == kVector, float4, float2>;
  constexpr int kLoads = 2 * kPack * sizeof(float) / sizeof(Load);
  Load loads[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const Load* const from = reinterpret_cast<const Load*>(table) + i;
    loads[i] = kInShared ? *from : __ldg(from);
  }
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
// A block has all of kHeads query heads, and of as many key and value heads where there are these. Its threads are in order of what
// they do, so that a warp does one thing: rotations of q, then of k, the rest of k, v; and where q is scaled its rest.
template <int kPack, bool kScales>
struct HeadPart {
  static constexpr int kHeads = kPack == kVector ? 8 : 1;

  int plane;  // 0: q, 1: k, 2: v
  int head;
  int first;  // element
  bool rotates, exists;

  // Of a head.
  GAPLESS_HOST_DEVICE static int num_rotations(const RopeAndCacheParams& p) {
    return p.rotary_dim / 2 / kPack;
  }
  GAPLESS_HOST_DEVICE static int num_rest(const RopeAndCacheParams& p) {
    return (p.heads.head_dim - p.rotary_dim) / kPack;
  }
  GAPLESS_HOST_DEVICE static int num_values(const RopeAndCacheParams& p) {
    return p.heads.head_dim / kPack;
  }
  // Of a block.
  GAPLESS_HOST_DEVICE static int count(const RopeAndCacheParams& p) {
    const int rests = kScales ? 2 : 1;
    return kHeads * (2 * num_rotations(p) + rests * num_rest(p) + num_values(p));
  }

  __device__ HeadPart(const RopeAndCacheParams& p, int first_head, int index) {
    // Whether the index is one of a kind, whose numbers of a head are `per_head`.
    const auto is_of = [&](int per_head) {
      if (index >= kHeads * per_head) {
        index -= kHeads * per_head;
        return false;
      }
      head = first_head + index / per_head;
      first = index % per_head * kPack;
      return true;
    };
    rotates = exists = true;
    if (is_of(num_rotations(p))) {
      plane = 0;
    } else if (is_of(num_rotations(p))) {
      plane = 1;
    } else {
      rotates = false;
      if (is_of(num_rest(p))) {
        plane = 1;
        first += p.rotary_dim;
      } else if (is_of(num_values(p))) {
        plane = 2;
      } else {
        exists = kScales && is_of(num_rest(p));
        plane = 0;
        first += p.rotary_dim;
      }
    }
    exists = exists && head < (plane == 0 ? p.heads.num_heads : p.heads.num_kv_heads);
  }
};

// What a block that scales has to know of its tokens: scales of its heads, for queries and for values; and angles.
template <int kHeads>
struct BlockScales {
  static constexpr int kNumScales = kTokens * kHeads;
  alignas(16) float angles[kTokens * kMaxRotaryDim];  // a token's in one piece
  float by_token[2 * kNumScales];
  float by_position[kNumScales];

  __device__ float of(int token, int head, int plane) const {
    return by_token[plane / 2 * kNumScales + token * kHeads + head] +
           by_position[token * kHeads + head];
  }

  // All threads of the block. Some add parts up while others find what positions give, which takes as long, or get angles.
  __device__ void find(const RopeAndCacheParams& p, const HeadScaleSums& s, int first_token,
                       int first_head) {
    const int all_heads = p.heads.num_heads, threads = blockDim.x;
    for (int i = threadIdx.x; i < 3 * kNumScales + kTokens * p.rotary_dim / 2; i += threads) {
      if (i >= 3 * kNumScales) {
        const int pair = i - 3 * kNumScales, token = first_token + pair / (p.rotary_dim / 2);
        if (token >= p.num_tokens) continue;
        const std::int64_t of = std::int64_t{p.positions[token]} * (p.rotary_dim / 2);
        reinterpret_cast<float2*>(angles)[pair] =
            __ldg(reinterpret_cast<const float2*>(p.rope_table) + of + pair % (p.rotary_dim / 2));
        continue;
      }
      const int plane = i / kNumScales, at = i % kNumScales;
      const int token = first_token + at / kHeads, head = first_head + at % kHeads;
      if (token >= p.num_tokens || head >= all_heads) continue;
      if (plane == 2) {
        const float alpha = __bfloat162float(static_cast<const Bf16*>(s.scales.alpha)[head]);
        by_position[at] = tau_position(alpha, p.positions[token], s.scales.bf16_positions);
        continue;
      }
      const float* const parts =
          s.parts + (std::int64_t{token} * s.num_parts * 2 + plane) * all_heads + head;
      // In two halves, so that more of them are on their way at once.
      const int half = s.num_parts / 2;
      float sums[2] = {};
#pragma unroll 12
      for (int part = 0; part < half; ++part) {
        sums[0] += parts[std::int64_t{part} * 2 * all_heads];
        sums[1] += parts[std::int64_t{half + part} * 2 * all_heads];
      }
      if (s.num_parts % 2 != 0) sums[1] += parts[std::int64_t{s.num_parts - 1} * 2 * all_heads];
      by_token[i] = tanhf(round_to_bf16(sums[0] + sums[1]));
    }
    __syncthreads();
  }
};

// Numbers times a scale, rounded to T.
template <int kPack>
__device__ __forceinline__ void scale_by(float scale, float (&values)[kPack]) {
  if constexpr (kPack == kVector) {
#pragma unroll
    for (float& value : values) value *= scale;
    gapless::unpack(pack(values), values);  // rounded in pairs, by one instruction for two
  } else {
    values[0] = round_to_bf16(values[0] * scale);
  }
}

// Blocks: x = tokens, y = heads. Element: of the cache. kScales: q and v by `s`.
// One block at least: where that is left unsaid, code for 12.0 has registers for more blocks and keeps the rest in memory.
template <int kPack, typename Element, bool kScales>
__global__ void __launch_bounds__(kMaxCacheThreads, 1)
    rope_and_cache_kernel(RopeAndCacheParams p, HeadScaleSums s) {
  wait_for_predecessor();
  let_successor_start();  // in this order: decode_attention.cu and prefill_attention.cu count on it
  using Part = HeadPart<kPack, kScales>;
  const int first_head = blockIdx.y * Part::kHeads, first_token = blockIdx.x * kTokens;
  const int half = p.rotary_dim / 2;
  const Part part(p, first_head, threadIdx.x);
  const int plane_start = part.plane == 0   ? 0
                          : part.plane == 1 ? p.heads.q_width()
                                            : p.heads.q_width() + p.heads.kv_width();
  Bf16* const rows = static_cast<Bf16*>(p.qkv) + first_token * p.qkv_stride + plane_start +
                     part.head * p.heads.head_dim + part.first;

  typename Pack<kPack>::Raw raw[kTokens], partners[kTokens];
  int slots[kTokens];
  [[maybe_unused]] int positions[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (!part.exists || first_token + t >= p.num_tokens) break;
    raw[t] = Pack<kPack>::load(rows + t * p.qkv_stride);
    if (part.rotates) partners[t] = Pack<kPack>::load(rows + t * p.qkv_stride + half);
    slots[t] = p.cache_slots[first_token + t];
    if constexpr (!kScales) positions[t] = p.positions[first_token + t];
  }
  __shared__ std::conditional_t<kScales, BlockScales<Part::kHeads>, char> scales;
  if constexpr (kScales) scales.find(p, s, first_token, first_head);
  if (!part.exists) return;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (first_token + t >= p.num_tokens) break;
    float values[kPack], partner[kPack];
    Pack<kPack>::unpack(raw[t], values);
    if (part.rotates) Pack<kPack>::unpack(partners[t], partner);
    if constexpr (kScales) {
      if (part.plane != 1) {
        const float scale = scales.of(t, part.head - first_head, part.plane);
        scale_by(scale, values);
        if (part.rotates) scale_by(scale, partner);
      }
    }
    if (part.rotates) {
      const float* angles;
      if constexpr (kScales) {
        angles = scales.angles + (t * half + part.first) * 2;
      } else {
        angles = p.rope_table + (std::int64_t{positions[t]} * half + part.first) * 2;
      }
      rotate<kPack, kScales>(values, partner, angles);
    }
    const auto store = [&](auto* to) {
      Pack<kPack>::store(values, to);
      if (part.rotates) Pack<kPack>::store(partner, to + half);
    };
    if (part.plane == 0) {
      store(rows + t * p.qkv_stride);
    } else {
      const KvPart in_cache = part.plane == 1 ? KvPart::kKeys : KvPart::kValues;
      store(static_cast<Element*>(p.kv.pages) +
            p.heads.kv_layout().at(in_cache, slots[t], part.head) + part.first);
    }
  }
}

// The q and k heads of every token, in place, one warp each. Blocks: x = token, y = some heads.
__global__ void __launch_bounds__(kNormThreads) norm_heads_kernel(RopeAndCacheParams p) {
  let_successor_start();
  wait_for_predecessor();
  const int lane = threadIdx.x % kWarp;
  const int head = blockIdx.y * (kNormThreads / kWarp) + threadIdx.x / kWarp;
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
  using Part = HeadPart<kPack, kScales>;
  const int threads = static_cast<int>(blocks_for(Part::count(params), kWarp)) * kWarp;
  if (threads > kMaxCacheThreads || (kScales && params.rotary_dim > kMaxRotaryDim)) {
    return invalid_argument("rope_and_cache: heads of {}, {} of them rotated",
                            params.heads.head_dim, params.rotary_dim);
  }
  return launch("rope_and_cache", stream,
                {.grid = dim3(blocks_for(params.num_tokens, kTokens),
                              blocks_for(params.heads.num_heads, Part::kHeads)),
                 .block = dim3(static_cast<unsigned>(threads))},
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
                                                 blocks_for(num_heads, kNormThreads / kWarp)),
                                    .block = dim3(kNormThreads)},
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
