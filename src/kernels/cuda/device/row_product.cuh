// The product of up to 64 rows of x with 16-row tiles of W on tensor cores, as decode kernels share
// it: W is the M operand of mma.m16n8k16, x its N operand, and the eight warps of a block divide
// the columns among them. An output is the sum over a warp's columns in order, then over every second
// warp in order, then of those two.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/register_exchange.cuh"

namespace gapless {

inline constexpr int kTileRows = 16;
inline constexpr int kGroupTiles = 4;  // multiplied at once
inline constexpr int kProductWarps = 8;
inline constexpr int kProductThreads = kProductWarps * kWarp;
inline constexpr int kProductColumns = 128;  // of W and x, at a time
inline constexpr int kReduceRows = 16;   // columns of sums (a row of x, a tile) reduced at a time
inline constexpr int kReducePitch = 20;  // floats per such column: 16 and padding
inline constexpr int kReduceBytes = kProductWarps * kReduceRows * kReducePitch * 4;

template <int kRows>
using Accumulators = float[kGroupTiles][kRows / 8][4];

// Of one column of sums in the buffer: those of even turns and of odd ones apart, each in order.
__device__ __forceinline__ float sum_over_warps(const float* buffer, int column, int tile_row) {
  float of_two[2] = {};
#pragma unroll
  for (int w = 0; w < kProductWarps; ++w) {
    of_two[w % 2] += buffer[(w * kReduceRows + column) * kReducePitch + tile_row];
  }
  return of_two[0] + of_two[1];
}

// Sums over the warps, those of even `turn`s (0 to 7) and of odd ones apart, each in order; `use(tile, row of x, row of the
// tile, sum)` is called once per output. The first kProductThreads threads take part. `buffer`:
// kReduceBytes, free again after the call.
template <int kRows, typename Use>
__device__ __forceinline__ void reduce_warps(const Accumulators<kRows>& sums, int num_tiles,
                                             unsigned turn, float* buffer, const Use& use) {
  constexpr int kBlocks = kRows / 8;  // of eight sums' columns, per tile
  constexpr int kAtOnce = kReduceRows / 8;
  const int lane = afresh(threadIdx.x) % kWarp;
  float* mine = buffer + turn * kReduceRows * kReducePitch;
#pragma unroll
  for (int first = 0; first < kGroupTiles * kBlocks; first += kAtOnce) {
    if (first / kBlocks >= num_tiles) break;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float(&c)[4] = sums[(first + i) / kBlocks][(first + i) % kBlocks];
      float* to = mine + (i * 8 + (lane % 4) * 2) * kReducePitch + lane / 4;
      to[0] = c[0];
      to[kReducePitch] = c[1];
      to[8] = c[2];
      to[kReducePitch + 8] = c[3];
    }
    named_barrier(1, kProductThreads);
    static_assert(kReduceRows * kTileRows == kProductThreads);
    const unsigned thread = afresh(threadIdx.x);
    const int column = thread / kTileRows, tile_row = thread % kTileRows;
    const float sum = sum_over_warps(buffer, column, tile_row);
    const int x_row = first * 8 + column;  // counted through the tiles
    if (x_row / kRows < num_tiles) use(x_row / kRows, x_row % kRows, tile_row, sum);
    named_barrier(1, kProductThreads);
  }
}

}  // namespace gapless
