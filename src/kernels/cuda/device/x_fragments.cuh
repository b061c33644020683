// Rows of x in boxes (tensor_map.h) as the N operand of mma.m16n8k16.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/tensor_map.h"

namespace gapless {

inline constexpr int kBoxRowBytes = cuda::kBoxColumns * 2;
inline constexpr int kBoxesPerStage = kProductColumns / cuda::kBoxColumns;

// This warp's 16 columns of kRows rows. `boxes`: kBoxesPerStage of them, `box_bytes` apart. Lanes 0-7 address the first 8 columns (k)
// of 8 rows, lanes 8-15 the second, lanes 16-31 the same of the next 8 rows.
template <int kRows>
__device__ __forceinline__ void load_x_fragments(std::uint32_t (&b)[kRows / 8][2],
                                                 std::uint32_t boxes, int box_bytes) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::uint32_t box = boxes + warp / 4 * box_bytes;
  const int chunk = warp % 4 * 2 + lane / 8 % 2;  // of 16 bytes
  if constexpr (kRows == 8) {
    const int row = lane % 8;
    ldmatrix_x2(b[0], box + row * kBoxRowBytes + ((chunk ^ row) << 4));
  } else {
#pragma unroll
    for (int pair = 0; pair < kRows / 16; ++pair) {
      const int row = pair * 16 + lane / 16 * 8 + lane % 8;
      std::uint32_t r[4];
      ldmatrix_x4(r, box + row * kBoxRowBytes + ((chunk ^ (row & 7)) << 4));
      b[2 * pair][0] = r[0];
      b[2 * pair][1] = r[1];
      b[2 * pair + 1][0] = r[2];
      b[2 * pair + 1][1] = r[3];
    }
  }
}

}  // namespace gapless
