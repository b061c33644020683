// Rows sorted by their experts (experts.cu), and products of them (grouped_experts.h, warp_experts.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_path.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Rows [first, first + count) of the sorted pairs.
struct ExpertTile {
  std::int32_t expert, first, count;
};

struct SortedProduct {
  const void* x;  // T, or with x_scales in 8 bits
  std::int64_t x_stride;
  // Row r of the sorted pairs is x[pairs_per_row > 0 ? order[r] / pairs_per_row : r].
  const std::int32_t* order;
  int pairs_per_row;
  const float* x_scales;  // of rows of x; nullptr: x and weights are T
  const void* weights;    // [experts, out, in], as x
  const float* scales;    // [experts, out], with x_scales
  int num_experts, in, out;
  Bf16* y;  // [pairs, out], or of gated products [pairs, out / 2]
  std::int64_t y_stride;
  const ExpertTile* tiles;
  const std::int32_t* num_tiles;
  // Of each tile: how many outputs of the gated product, of `inner`, lie in memory. Zeros before it. (By warps, and in 8 bits: nobody
  // counts.)
  std::int32_t* num_stored;
  // Of gates.
  Activation activation;
  float up_offset;
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
