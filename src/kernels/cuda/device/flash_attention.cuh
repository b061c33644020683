// Attention of one tile of queries over a range of keys, on tensor cores, with a running softmax.
//
// A block of kFlashWarps warps takes kFlashQueries queries of one head; each warp takes kQueryTiles
// 16-query tiles, so that every key fragment it loads from shared memory serves several products.
// Keys and values come in tiles of kKeyTile through two shared-memory buffers.
//
// The width kHeadDim is any multiple of 8: products over it run in steps of 16 and, for an odd
// multiple of 8 (72), one of 8, so nothing is padded, in memory or in arithmetic.
//
// Row invariance: a query's sums run over key tiles that start at multiples of kKeyTile of its
// sequence. A tile that it does not see leaves its maximum, sum and output untouched, bit for bit.
#pragma once

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace gapless {

inline constexpr int kFlashWarps = 4;
inline constexpr int kFlashThreads = kFlashWarps * kWarp;
inline constexpr int kQueryTiles = 2;
inline constexpr int kFlashQueries = kFlashWarps * kQueryTiles * 16;
inline constexpr int kKeyTile = 64;

template <int kHeadDim>
struct FlashShared {
  // An odd number of 16-byte chunks per row keeps ldmatrix free of bank conflicts.
  static constexpr int kPitch = (kHeadDim / 8) % 2 == 1 ? kHeadDim : kHeadDim + 8;
  Bf16 keys[2][kKeyTile][kPitch];
  Bf16 values[2][kKeyTile][kPitch];
};

// What a kernel says about its queries and keys. Queries of the tile are numbered
// 0..kFlashQueries-1.
//   bool has_query(int i)            false: i lies past the end
//   const Bf16* query(int i)         its kHeadDim elements
//   Bf16* output(int i)
//   int num_visible(int i)           it sees keys 0..num_visible-1; 0 when !has_query(i)
//   int num_keys()                   keys that any query of the tile sees
//   const Bf16* key(int t), value(int t)   t < num_keys()

template <int kHeadDim, typename Problem>
__device__ __forceinline__ void copy_key_tile(const Problem& problem, int first_key,
                                              Bf16 (*keys)[FlashShared<kHeadDim>::kPitch],
                                              Bf16 (*values)[FlashShared<kHeadDim>::kPitch]) {
  constexpr int kChunks = kHeadDim / kVector;
  for (int i = threadIdx.x; i < kKeyTile * kChunks; i += kFlashThreads) {
    const int t = i / kChunks, chunk = i % kChunks;
    const bool valid = first_key + t < problem.num_keys();
    const int key = valid ? first_key + t : 0;
    copy_async_16(shared_address(&keys[t][chunk * kVector]), problem.key(key) + chunk * kVector,
                  valid);
    copy_async_16(shared_address(&values[t][chunk * kVector]), problem.value(key) + chunk * kVector,
                  valid);
  }
}

// The A fragments of 16 queries.
template <int kHeadDim>
struct QueryFragments {
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kHasTail = kHeadDim % 16 != 0;
  std::uint32_t steps[kSteps][4];
  std::uint32_t tail[2];

  template <typename Problem>
  __device__ void load(const Problem& problem, int first) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first + lane / 4 + half * 8;
      const bool valid = problem.has_query(i);
      const Bf16* from = valid ? problem.query(i) : nullptr;
      auto pair_at = [&](int column) {
        return valid ? *reinterpret_cast<const std::uint32_t*>(from + column) : 0u;
      };
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        steps[step][half] = pair_at(step * 16 + (lane % 4) * 2);
        steps[step][half + 2] = pair_at(step * 16 + 8 + (lane % 4) * 2);
      }
      if constexpr (kHasTail) tail[half] = pair_at(kSteps * 16 + (lane % 4) * 2);
    }
  }
};

// scores = Q K^T of one warp: kQueryTiles x 16 queries, kKeyTile keys.
template <int kHeadDim>
__device__ __forceinline__ void multiply_keys(
    float (&scores)[kQueryTiles][kKeyTile / 8][4],
    const QueryFragments<kHeadDim> (&queries)[kQueryTiles],
    const Bf16 (*keys)[FlashShared<kHeadDim>::kPitch]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[q][n][c] = 0;
    }
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; n += 2) {
      std::uint32_t b[4];
      ldmatrix_x4(b,
                  shared_address(
                      &keys[n * 8 + (lane / 16) * 8 + lane % 8][step * 16 + (lane / 8) % 2 * 8]));
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
        mma_k16(scores[q][n], queries[q].steps[step], b[0], b[1]);
        mma_k16(scores[q][n + 1], queries[q].steps[step], b[2], b[3]);
      }
    }
  }
  if constexpr (QueryFragments<kHeadDim>::kHasTail) {
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; n += 4) {
      std::uint32_t b[4];
      ldmatrix_x4(b, shared_address(&keys[n * 8 + lane][kHeadDim / 16 * 16]));
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          mma_k8(scores[q][n + i], queries[q].tail[0], queries[q].tail[1], b[i]);
        }
      }
    }
  }
}

// output += P V of one warp.
template <int kHeadDim>
__device__ __forceinline__ void multiply_values(
    float (&output)[kQueryTiles][kHeadDim / 8][4],
    const std::uint32_t (&p)[kQueryTiles][kKeyTile / 16][4],
    const Bf16 (*values)[FlashShared<kHeadDim>::kPitch]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 0; step < kKeyTile / 16; ++step) {
#pragma unroll
    for (int n = 0; n + 1 < kHeadDim / 8; n += 2) {
      std::uint32_t b[4];
      ldmatrix_x4_trans(b, shared_address(&values[step * 16 + lane % 16][n * 8 + lane / 16 * 8]));
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
        mma_k16(output[q][n], p[q][step], b[0], b[1]);
        mma_k16(output[q][n + 1], p[q][step], b[2], b[3]);
      }
    }
    if constexpr ((kHeadDim / 8) % 2 == 1) {
      constexpr int kLast = kHeadDim / 8 - 1;
      std::uint32_t b[2];
      ldmatrix_x2_trans(b, shared_address(&values[step * 16 + lane % 16][kLast * 8]));
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) mma_k16(output[q][kLast], p[q][step], b[0], b[1]);
    }
  }
}

// Running softmax of one 16-query tile: per lane two queries (lane/4 and lane/4 + 8).
template <int kHeadDim>
struct RunningSoftmax {
  float largest[2] = {-INFINITY, -INFINITY};  // of the scaled scores, in powers of two
  float sum[2] = {0, 0};                      // this lane's share

  // Turns scores into the A fragments of P, rescales `output`. `num_visible` are the lane's
  // queries'; keys of the tile start at first_key.
  __device__ __forceinline__ void absorb(float (&scores)[kKeyTile / 8][4],
                                         float (&output)[kHeadDim / 8][4],
                                         std::uint32_t (&p)[kKeyTile / 16][4],
                                         const int (&num_visible)[2], int first_key, float scale) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int visible = num_visible[half] - first_key;
      if (visible < kKeyTile) {
#pragma unroll
        for (int n = 0; n < kKeyTile / 8; ++n) {
          const int key = n * 8 + (lane % 4) * 2;
          if (key >= visible) scores[n][half * 2] = -INFINITY;
          if (key + 1 >= visible) scores[n][half * 2 + 1] = -INFINITY;
        }
      }
      float tile_largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        tile_largest = fmaxf(tile_largest, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
      }
      tile_largest = warp_max<4>(tile_largest);
      const float before = largest[half];
      largest[half] = fmaxf(before, tile_largest * scale);
      // A query that sees nothing (past the end) keeps zeros, not NaN.
      const float reference = largest[half] == -INFINITY ? 0.0f : largest[half];
      const float keep = exp2f(before - reference);
      sum[half] *= keep;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        output[n][half * 2] *= keep;
        output[n][half * 2 + 1] *= keep;
      }
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        const float a = exp2f(scores[n][half * 2] * scale - reference);
        const float b = exp2f(scores[n][half * 2 + 1] * scale - reference);
        sum[half] += a + b;
        p[n / 2][half + n % 2 * 2] = pack_bf16x2(a, b);
      }
    }
  }

  __device__ __forceinline__ float total(int half) const {
    return warp_sum<4>(sum[half]);
  }
};

template <int kHeadDim, typename Problem>
__device__ __forceinline__ void flash_attention(const Problem& problem,
                                                FlashShared<kHeadDim>& shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_query = warp * kQueryTiles * 16;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kHeadDim));
  const int num_tiles = (problem.num_keys() + kKeyTile - 1) / kKeyTile;

  copy_key_tile<kHeadDim>(problem, 0, shared.keys[0], shared.values[0]);
  commit_async_copies();
  QueryFragments<kHeadDim> queries[kQueryTiles];
  int num_visible[kQueryTiles][2];
#pragma unroll
  for (int q = 0; q < kQueryTiles; ++q) {
    queries[q].load(problem, first_query + q * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      num_visible[q][half] = problem.num_visible(first_query + q * 16 + lane / 4 + half * 8);
    }
  }

  float output[kQueryTiles][kHeadDim / 8][4] = {};
  RunningSoftmax<kHeadDim> softmax[kQueryTiles];
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int buffer = tile % 2;
    if (tile + 1 < num_tiles) {
      copy_key_tile<kHeadDim>(problem, (tile + 1) * kKeyTile, shared.keys[1 - buffer],
                              shared.values[1 - buffer]);
    }
    commit_async_copies();
    wait_async_copies<1>();
    __syncthreads();

    float scores[kQueryTiles][kKeyTile / 8][4];
    multiply_keys<kHeadDim>(scores, queries, shared.keys[buffer]);
    std::uint32_t p[kQueryTiles][kKeyTile / 16][4];
#pragma unroll
    for (int q = 0; q < kQueryTiles; ++q) {
      softmax[q].absorb(scores[q], output[q], p[q], num_visible[q], tile * kKeyTile, scale);
    }
    multiply_values<kHeadDim>(output, p, shared.values[buffer]);
    __syncthreads();  // before the next turn overwrites this buffer
  }

#pragma unroll
  for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = softmax[q].total(half);
      const int i = first_query + q * 16 + lane / 4 + half * 8;
      if (!problem.has_query(i)) continue;
      const float inverse = 1.0f / total;
      Bf16* to = problem.output(i);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        *reinterpret_cast<std::uint32_t*>(to + n * 8 + (lane % 4) * 2) =
            pack_bf16x2(output[q][n][half * 2] * inverse, output[q][n][half * 2 + 1] * inverse);
      }
    }
  }
}

}  // namespace gapless
