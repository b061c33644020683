// Rows of x as warpgroups' products over experts want them: the 32 columns of a call of multiply_step
// (expert_product.cuh) in the order in which its two instructions take them.
//
// There lane l has columns 8 (l % 4) to + 7, two for each half of an instruction's 16 columns. So pairs of columns are
// the elements of a 4 x 4 matrix, which is transposed: pair 4 i + j moves to place 4 j + i.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

inline constexpr int kPermutedColumns = kStepColumns;

// Where a row's column (an even one) begins.
__host__ __device__ constexpr int permuted_column(int column) {
  const int pair = column % kPermutedColumns / 2;
  return column / kPermutedColumns * kPermutedColumns + (pair % 4 * 4 + pair / 4) * 2;
}

// Rows end with a whole slice.
__host__ __device__ constexpr int permuted_row_columns(int columns) {
  return (columns + kSliceColumns - 1) / kSliceColumns * kSliceColumns;
}

// One warp: row `to` from row `from`, both beginning on 16 bytes; `columns` is a multiple of 8.
__device__ __forceinline__ void permute_row(const Bf16* from, int columns, Bf16* to) {
  for (int at = threadIdx.x % kWarp * kPermutedColumns; at < permuted_row_columns(columns);
       at += kWarp * kPermutedColumns) {
    uint4 in[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = at + i * kVector;
      in[i] = column < columns ? *reinterpret_cast<const uint4*>(from + column) : uint4{};
    }
    auto* out = reinterpret_cast<uint4*>(to + at);
    out[0] = {in[0].x, in[1].x, in[2].x, in[3].x};
    out[1] = {in[0].y, in[1].y, in[2].y, in[3].y};
    out[2] = {in[0].z, in[1].z, in[2].z, in[3].z};
    out[3] = {in[0].w, in[1].w, in[2].w, in[3].w};
  }
}

}  // namespace gapless
