// The order in which every product of experts by warps adds up, whatever the number of rows. W is the M operand
// of mma.m16n8k16, rows of x its N operand. (Warpgroups have an order of their own: grouped_experts.cu.)
//
// The columns are cut into chunks of 512, a chunk into eight slices of 64. An output is the sum over
// slices 0 to 7, in order, of the slice's own sum over all chunks in order. So eight warps may take a
// slice each (few rows), and one warp may go through the slices one after the other (many rows).
//
// A lane reads 16 contiguous bytes of a row where the instruction's layout has four pieces of 4 bytes:
// within 32 columns the operands' columns change places, the same way in both.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"

namespace gapless {

inline constexpr int kSliceColumns = 64;
inline constexpr int kNumSlices = 8;
inline constexpr int kChunkColumns = kSliceColumns * kNumSlices;
inline constexpr int kStepColumns = 32;  // of one call of multiply_step
inline constexpr int kStepsPerSlice = kSliceColumns / kStepColumns;

// d += W x over 32 columns. Lane l gives columns 8 (l % 4) to + 7 of three rows: `low`, row l / 4 of
// the sixteen of W; `high`, row l / 4 + 8; `x`, row l / 4 of the eight of x. In d lie rows l / 4 (first
// two values) and l / 4 + 8 (last two) of W at rows 2 (l % 4) and + 1 of x.
__device__ __forceinline__ void multiply_step(float (&d)[4], const uint4& low, const uint4& high,
                                              const uint4& x) {
  const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
  mma_k16(d, first, x.x, x.y);
  mma_k16(d, second, x.z, x.w);
}

// The slices of `columns` columns one after the other, in pieces of a slice's columns of a chunk.
struct SliceWalk {
  int columns;
  int slice = 0, chunk = 0;

  __device__ bool is_done() const { return slice == kNumSlices || begin() >= columns; }
  __device__ int begin() const { return chunk * kChunkColumns + slice * kSliceColumns; }
  // Whether the piece is the last of its slice.
  __device__ bool ends_slice() const { return begin() + kChunkColumns >= columns; }
  __device__ void advance() {
    const bool ends = ends_slice();
    slice += ends ? 1 : 0;
    chunk = ends ? 0 : chunk + 1;
  }
};

}  // namespace gapless
