// Into and inside the paged cache: rotate and store, copy pages.
#include <algorithm>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kCopyThreads = 256;

// One work item of one token and head: kPack elements, or for a rotated part kPack pairs.
// Items of a head, in order: rotations of q, rotations of k, copies of the rest of k, copies of v.
template <int kPack>
struct Pack {
  float values[kPack];

  __device__ static Pack load(const Bf16* from) {
    Pack pack;
    if constexpr (kPack == kVector) {
      load_vector(from, pack.values);
    } else {
      pack.values[0] = __bfloat162float(*from);
    }
    return pack;
  }
  template <typename Element>
  __device__ void store(Element* to) const {
    if constexpr (kPack == kVector) {
      using Vector = KvVector<Element>;
      *reinterpret_cast<typename Vector::Raw*>(to) = Vector::pack(values);
    } else {
      store_kv_element(to, values[0]);
    }
  }
};

// Pairs (from[j], from[j + half]) turned by the angles table[2j], table[2j + 1] = cos, sin.
template <int kPack, typename Element>
__device__ void rotate(const Bf16* from, Element* to, int half, const float* table) {
  const Pack<kPack> a = Pack<kPack>::load(from), b = Pack<kPack>::load(from + half);
  Pack<kPack> real, imaginary;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float cosine = table[2 * i], sine = table[2 * i + 1];
    real.values[i] = a.values[i] * cosine - b.values[i] * sine;
    imaginary.values[i] = a.values[i] * sine + b.values[i] * cosine;
  }
  real.store(to);
  imaginary.store(to + half);
}

// Element: of the cache.
template <int kPack, typename Element>
__global__ void __launch_bounds__(kThreads) rope_and_cache_kernel(RopeAndCacheParams p) {
  wait_for_predecessor();
  let_successor_start();  // in this order: decode_attention.cu counts on it
  const int half = p.rotary_dim / 2;
  const int rotations = half / kPack;
  const int rest = (p.head_dim - p.rotary_dim) / kPack;
  const int per_head = 2 * rotations + rest + p.head_dim / kPack;
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= p.num_heads * per_head) return;
  const int head = i / per_head;
  int item = i % per_head;

  const std::int64_t token = blockIdx.x;
  const int width = p.num_heads * p.head_dim;
  Bf16* q = static_cast<Bf16*>(p.qkv) + token * p.qkv_stride + head * p.head_dim;
  const Bf16* k = q + width;
  const Bf16* v = k + width;
  const std::int64_t slot = p.cache_slots[token];
  const std::int64_t to =
      ((slot / kPageTokens * p.num_heads + head) * kPageTokens + slot % kPageTokens) * p.head_dim;
  Element* k_cache = static_cast<Element*>(p.kv.k) + to;
  Element* v_cache = static_cast<Element*>(p.kv.v) + to;
  const float* table = p.rope_table + std::int64_t{p.positions[token]} * 2 * half;

  if (item < rotations) {
    rotate<kPack>(q + item * kPack, q + item * kPack, half, table + 2 * item * kPack);
    return;
  }
  item -= rotations;
  if (item < rotations) {
    rotate<kPack>(k + item * kPack, k_cache + item * kPack, half, table + 2 * item * kPack);
    return;
  }
  item -= rotations;
  if (item < rest) {
    const int at = p.rotary_dim + item * kPack;
    Pack<kPack>::load(k + at).store(k_cache + at);
    return;
  }
  item -= rest;
  Pack<kPack>::load(v + item * kPack).store(v_cache + item * kPack);
}

// Blocks: x = part of a page, y = plane (keys or values of a layer), z = copy.
__global__ void __launch_bounds__(kCopyThreads) copy_pages_kernel(CopyPagesParams p) {
  let_successor_start();
  wait_for_predecessor();
  const int copy = blockIdx.z;
  if (copy >= *p.num_copies) return;
  const PageCopy pages = p.copies[copy];
  char* plane = static_cast<char*>(p.kv_base) + blockIdx.y * p.num_pages * p.page_bytes;
  const auto* from = reinterpret_cast<const uint4*>(plane + pages.from * p.page_bytes);
  auto* to = reinterpret_cast<uint4*>(plane + pages.to * p.page_bytes);
  const std::int64_t vectors = p.page_bytes / 16;
  for (std::int64_t i = blockIdx.x * kCopyThreads + threadIdx.x; i < vectors;
       i += gridDim.x * kCopyThreads) {
    to[i] = from[i];
  }
}

template <typename Element>
Status launch_rope_and_cache(Stream& stream, const RopeAndCacheParams& params) {
  const bool vectors = params.rotary_dim % (2 * kVector) == 0 && params.head_dim % kVector == 0 &&
                       params.qkv_stride % kVector == 0;
  const int pack = vectors ? kVector : 1;
  const int per_head = 2 * params.head_dim / pack;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.num_tokens),
                                       blocks_for(params.num_heads * per_head, kThreads)),
                          .block = dim3(kThreads)};
  return launch(
      "rope_and_cache", stream, shape,
      vectors ? rope_and_cache_kernel<kVector, Element> : rope_and_cache_kernel<1, Element>,
      params);
}

}  // namespace

Status rope_and_cache(Stream& stream, const RopeAndCacheParams& params) {
  return params.kv.format == KvFormat::kFp8 ? launch_rope_and_cache<E4m3>(stream, params)
                                            : launch_rope_and_cache<Bf16>(stream, params);
}

Status copy_pages(Stream& stream, const CopyPagesParams& params) {
  if (params.page_bytes % 16 != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "copy_pages: a page must be a multiple of 16 bytes");
  }
  constexpr unsigned kMaxParts = 8;
  const unsigned parts = std::min(kMaxParts, blocks_for(params.page_bytes / 16, kCopyThreads));
  return launch("copy_pages", stream,
                {.grid = dim3(parts, static_cast<unsigned>(2 * params.num_layers),
                              static_cast<unsigned>(params.max_copies)),
                 .block = dim3(kCopyThreads)},
                copy_pages_kernel, params);
}

}  // namespace gapless::cuda
