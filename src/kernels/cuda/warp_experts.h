// Products over experts of many rows, sorted by their experts: by warps, on paths without warpgroups.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/expert_tiles.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Up to so many rows in all, few chose each expert, and tiles are flat.
inline constexpr int kMaxFlatRows = 64;
inline constexpr int kFlatTileRows = 8, kSquareTileRows = 64;

constexpr int warp_tile_rows(int num_rows) {
  return num_rows <= kMaxFlatRows ? kFlatTileRows : kSquareTileRows;
}

struct WarpProduct {
  const Bf16*
      x;  // row r of the sorted pairs is x[pairs_per_row > 0 ? order[r] / pairs_per_row : r]
  std::int64_t x_stride;
  const std::int32_t* order;
  int pairs_per_row;
  const char* weights;  // [experts, out, in], rows 2 * in bytes apart
  const float* scales;  // [experts, out]; nullptr: weights are T
  int in, out;
  Bf16* y;  // [pairs, out]
  const ExpertTile* tiles;
  const std::int32_t* num_tiles;
};

// y = W x, with the bits of expert_product.cuh. Tiles have at most `tile_rows` rows, one of warp_tile_rows' numbers;
// `max_tiles`: *num_tiles is no more.
Status multiply_by_warps(Stream& stream, const WarpProduct& product, int tile_rows, int max_tiles);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
