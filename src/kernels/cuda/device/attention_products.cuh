// The matrix products of attention: a warpgroup's 64 queries, 16 of each warp, times a tile of keys
// or values in shared memory (flash_stages.cuh). By wgmma where there are warpgroups, else by each
// warp for itself (mma.sync). Sums lie in the same registers either way.
//
// begin_products, some products, end_products; wait_for_products before what they read or write is
// used again.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_path.h"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/flash_stages.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/wgmma_of_shared.cuh"

namespace gapless {

inline constexpr bool kHasWarpgroupProducts = cuda::kPath.has_warpgroups;

// Of a head size: as many groups and keys as `Fast` says where warpgroups exchange registers. Else
// as many as leave a thread the registers that it needs, and fit into the smallest shared memory.
template <int kHeadDim, typename Fast>
using FlashShapeOfPath =
    std::conditional_t<kHasWarpgroupProducts, Fast,
                       FlashShape<kHeadDim, kHeadDim <= 32 ? 3 : 2, kHeadDim <= 72 ? 64 : 32>>;

__device__ __forceinline__ void begin_products() {
  if constexpr (kHasWarpgroupProducts) wgmma_fence();
}
__device__ __forceinline__ void end_products() {
  if constexpr (kHasWarpgroupProducts) wgmma_commit();
}
__device__ __forceinline__ void wait_for_products() {
  if constexpr (kHasWarpgroupProducts) {
    wgmma_wait<0>();
  } else {
    __syncwarp();
  }
}

// The A fragments of one warp's 16 queries.
template <int kHeadDim>
struct QueryFragments {
  static constexpr int kSteps = (kHeadDim + 15) / 16;
  std::uint32_t steps[kSteps][4];

  template <typename Problem>
  __device__ void load(const Problem& problem, int first) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first + lane / 4 + half * 8;
      const bool valid = problem.has_query(i);
      const Bf16* from = valid ? problem.query(i) : nullptr;
#pragma unroll
      for (int part = 0; part < 2 * kSteps; ++part) {
        const bool exists = valid && part * 8 < kHeadDim;
        steps[part / 2][half + part % 2 * 2] =
            exists ? *reinterpret_cast<const std::uint32_t*>(from + part * 8 + (lane % 4) * 2) : 0u;
      }
    }
  }
};

// One warp's 16 queries in the fragments of products.
template <typename Shape>
struct FlashOutput {
  using Stage = FlashStage<Shape>;
  float blocks[Stage::kBlocks * Stage::kBlockColumns / 2] = {};
  float rest[4] = {};  // the left-over columns

  __device__ __forceinline__ void scale(const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < Stage::kBlocks * Stage::kBlockColumns / 2; ++i) blocks[i] *= by[i / 2 % 2];
    if constexpr (Stage::kHasRest) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rest[i] *= by[i / 2];
    }
  }
  // Columns 8n + lane % 4 * 2 and the next one, of query lane / 4 + 8 half.
  __device__ __forceinline__ std::uint32_t columns(int n, int half, float factor) const {
    const bool in_blocks = n < Stage::kBlocks * Stage::kBlockColumns / 8;
    const float* from = in_blocks ? blocks + n * 4 + half * 2 : rest + half * 2;
    return pack_bf16x2(from[0] * factor, from[1] * factor);
  }
};

// ---- By warpgroups.

template <typename Shape>
__device__ __forceinline__ void multiply_keys_wgmma(float (&scores)[Shape::kKeyTile / 2],
                                                    const QueryFragments<Shape::kHeadDim>& queries,
                                                    std::uint32_t stage) {
  using Stage = FlashStage<Shape>;
  constexpr int kBlockSteps = Stage::kBlockColumns / 16;
  const std::uint64_t keys = wgmma_swizzled_operand<Stage::kRowBytes>(stage + Stage::kKeys);
#pragma unroll
  for (int step = 0; step < Stage::kBlocks * kBlockSteps; ++step) {
    const int offset = step / kBlockSteps * Stage::kBlockBytes + step % kBlockSteps * 32;
    wgmma_async<false>(scores, queries.steps[step], wgmma_moved(keys, offset), step > 0);
  }
  if constexpr (Stage::kHasRest) {
    wgmma_async<false>(scores, queries.steps[Stage::kBlocks * kBlockSteps],
                       wgmma_operand(stage + Stage::kKeyRest, Stage::kPlaneBytes, 128), true);
  }
}

// Queries in shared memory, at this address (FlashQueries).
template <typename Shape>
__device__ __forceinline__ void multiply_keys_wgmma(float (&scores)[Shape::kKeyTile / 2],
                                                    std::uint32_t queries, std::uint32_t stage) {
  using Stage = FlashStage<Shape>;
  using Queries = FlashQueries<Shape>;
  constexpr int kBlockSteps = Stage::kBlockColumns / 16;
  const std::uint64_t q = wgmma_swizzled_operand<Stage::kRowBytes>(queries);
  const std::uint64_t keys = wgmma_swizzled_operand<Stage::kRowBytes>(stage + Stage::kKeys);
#pragma unroll
  for (int step = 0; step < Stage::kBlocks * kBlockSteps; ++step) {
    const int block = step / kBlockSteps, in_row = step % kBlockSteps * 32;
    wgmma_of_shared(scores, wgmma_moved(q, block * Queries::kBlockBytes + in_row),
                    wgmma_moved(keys, block * Stage::kBlockBytes + in_row), step > 0);
  }
  if constexpr (Stage::kHasRest) {
    wgmma_of_shared(scores, wgmma_operand(queries + Queries::kRest, Queries::kPlaneBytes, 128),
                    wgmma_operand(stage + Stage::kKeyRest, Stage::kPlaneBytes, 128));
  }
}

template <typename Shape>
__device__ __forceinline__ void multiply_values_wgmma(
    FlashOutput<Shape>& output, const std::uint32_t (&p)[Shape::kKeyTile / 16][4],
    std::uint32_t stage) {
  using Stage = FlashStage<Shape>;
  const std::uint64_t values =
      wgmma_swizzled_operand<Stage::kRowBytes>(stage + Stage::kValues, Stage::kBlockBytes);
  const std::uint64_t rest = wgmma_operand(stage + Stage::kValueRest, 128, Stage::kPlaneBytes);
#pragma unroll
  for (int step = 0; step < Shape::kKeyTile / 16; ++step) {
    wgmma_async<true>(output.blocks, p[step], wgmma_moved(values, step * 16 * Stage::kRowBytes),
                      true);
    if constexpr (Stage::kHasRest) {
      wgmma_async<true>(output.rest, p[step], wgmma_moved(rest, step * 256), true);
    }
  }
}

// ---- By warps. Each load brings four 8x8 pieces: two of 16 keys or dimensions, of two columns'
// blocks. All of a product's columns are swizzled in the same way, because they lie in rows whose
// numbers differ by multiples of eight.

template <typename Shape>
__device__ __forceinline__ void multiply_keys_mma(float (&scores)[Shape::kKeyTile / 2],
                                                  const QueryFragments<Shape::kHeadDim>& queries,
                                                  std::uint32_t stage) {
  using Stage = FlashStage<Shape>;
  constexpr int kBlockSteps = Stage::kBlockColumns / 16;
  constexpr int kSteps = Stage::kBlocks * kBlockSteps;
  const int lane = threadIdx.x % kWarp;
  float(&sums)[Shape::kKeyTile / 8][4] = reinterpret_cast<float(&)[Shape::kKeyTile / 8][4]>(scores);
#pragma unroll
  for (int i = 0; i < Shape::kKeyTile / 2; ++i) scores[i] = 0;
  // Lanes 8i and up: keys 8 (i / 2), dimensions 8 (i % 2).
  const int key = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
  const std::uint32_t from = stage + Stage::kKeys + key * Stage::kRowBytes;
  const int swizzle = wgmma_swizzle<Stage::kRowBytes>(key);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const std::uint32_t at = from + step / kBlockSteps * Stage::kBlockBytes +
                             ((step % kBlockSteps * 2 + chunk) ^ swizzle) * 16;
#pragma unroll
    for (int two = 0; two < Shape::kKeyTile / 16; ++two) {
      std::uint32_t b[4];
      ldmatrix_x4(b, at + two * 16 * Stage::kRowBytes);
      mma_k16(sums[2 * two], queries.steps[step], b[0], b[1]);
      mma_k16(sums[2 * two + 1], queries.steps[step], b[2], b[3]);
    }
  }
  if constexpr (Stage::kHasRest) {
#pragma unroll
    for (int four = 0; four < Shape::kKeyTile / 32; ++four) {
      std::uint32_t b[4];
      ldmatrix_x4(b, stage + Stage::kKeyRest + (four * 32 + lane) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mma_k8(sums[4 * four + i], queries.steps[kSteps][0], queries.steps[kSteps][1], b[i]);
      }
    }
  }
}

template <typename Shape>
__device__ __forceinline__ void multiply_values_mma(
    FlashOutput<Shape>& output, const std::uint32_t (&p)[Shape::kKeyTile / 16][4],
    std::uint32_t stage) {
  using Stage = FlashStage<Shape>;
  constexpr int kBlockChunks = Stage::kBlockColumns / 8;
  constexpr int kChunks = Stage::kBlocks * kBlockChunks;
  const int lane = threadIdx.x % kWarp;
  float(&sums)[kChunks][4] = reinterpret_cast<float(&)[kChunks][4]>(output.blocks);
  // Lanes 8i and up: keys 8 (i % 2), columns 8 (i / 2).
  const int key = lane % 16, chunk = lane / 16;
  const std::uint32_t from = stage + Stage::kValues + key * Stage::kRowBytes;
  const int swizzle = wgmma_swizzle<Stage::kRowBytes>(key);
#pragma unroll
  for (int step = 0; step < Shape::kKeyTile / 16; ++step) {
#pragma unroll
    for (int two = 0; two < kChunks / 2; ++two) {
      std::uint32_t b[4];
      ldmatrix_x4_trans(b, from + two * 2 / kBlockChunks * Stage::kBlockBytes +
                               step * 16 * Stage::kRowBytes +
                               ((two * 2 % kBlockChunks + chunk) ^ swizzle) * 16);
      mma_k16(sums[2 * two], p[step], b[0], b[1]);
      mma_k16(sums[2 * two + 1], p[step], b[2], b[3]);
    }
    if constexpr (Stage::kHasRest) {
      std::uint32_t b[2];
      ldmatrix_x2_trans(b, stage + Stage::kValueRest + (step * 16 + lane % 16) * 16);
      mma_k16(output.rest, p[step], b[0], b[1]);
    }
  }
}

// ---- Whichever there is. stage: its address.

// scores = Q K^T. queries: QueryFragments, or their address.
template <typename Shape, typename Queries>
__device__ __forceinline__ void multiply_keys(float (&scores)[Shape::kKeyTile / 2],
                                              const Queries& queries, std::uint32_t stage) {
  if constexpr (kHasWarpgroupProducts) {
    multiply_keys_wgmma<Shape>(scores, queries, stage);
  } else {
    multiply_keys_mma<Shape>(scores, queries, stage);
  }
}

// output += P V.
template <typename Shape>
__device__ __forceinline__ void multiply_values(FlashOutput<Shape>& output,
                                                const std::uint32_t (&p)[Shape::kKeyTile / 16][4],
                                                std::uint32_t stage) {
  if constexpr (kHasWarpgroupProducts) {
    multiply_values_wgmma<Shape>(output, p, stage);
  } else {
    multiply_values_mma<Shape>(output, p, stage);
  }
}

}  // namespace gapless
