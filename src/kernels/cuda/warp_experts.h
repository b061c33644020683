// Products over experts of many rows, sorted by their experts: by warps, on paths without warpgroups.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/expert_tiles.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Up to so many rows in all, few chose each expert, and tiles are flat.
inline constexpr int kMaxFlatRows = 64;
inline constexpr int kFlatTileRows = 8, kSquareTileRows = 64;

constexpr int warp_tile_rows(int num_rows) {
  return num_rows <= kMaxFlatRows ? kFlatTileRows : kSquareTileRows;
}

// y = W x, with the bits of expert_product.cuh. Tiles have at most `tile_rows` rows, one of warp_tile_rows' numbers;
// `max_tiles`: *num_tiles is no more.
Status multiply_by_warps(Stream& stream, const SortedProduct& product, int tile_rows,
                         int max_tiles);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
