// Weights in the layout of decode products (PrepareLinearParams).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless {

// Tiles of 16 rows x 128 columns, of which a part holds all or half of the columns; column of parts after column of parts, so
// that what a block multiplies at a time, several tiles of the same columns, is one piece of memory for each part of a tile. Edges
// are padded with zeros. In a tile lie, per 16 columns, the A fragments of mma.m16n8k16 (device/mma.cuh), lane
// after lane.
//   kNative: 16 bytes a lane. Two parts of 64 columns.
//   kFp8:    8 bytes a lane, two such steps beside each other: for each of a lane's registers its
//            two e4m3 numbers. Behind the tile, a byte for each row: its power of two
//            (fp8_scale_byte in device/fp8_tile.cuh). One part.
inline constexpr int kPreparedTileRows = 16;
inline constexpr int kPreparedTileColumns = 128;

template <PreparedFormat kFormat>
inline constexpr int kPreparedTileParts = kFormat == PreparedFormat::kFp8 ? 1 : 2;

template <PreparedFormat kFormat>
inline constexpr int kPreparedTileBytes = kPreparedTileRows*(kFormat == PreparedFormat::kFp8
                                                                 ? kPreparedTileColumns + 1
                                                                 : 2 * kPreparedTileColumns);

template <PreparedFormat kFormat>
inline constexpr int kPreparedPartBytes = kPreparedTileBytes<kFormat> / kPreparedTileParts<kFormat>;

// Bytes from the matrix' start to a part of a tile, for `all_tiles` tiles in a column of them.
template <PreparedFormat kFormat>
GAPLESS_HOST_DEVICE constexpr std::int64_t prepared_part_offset(std::int64_t all_tiles,
                                                                std::int64_t tile, int chunk,
                                                                int part) {
  constexpr int kParts = kPreparedTileParts<kFormat>;
  return ((std::int64_t{chunk} * kParts + part) * all_tiles + tile) * kPreparedPartBytes<kFormat>;
}

namespace cuda {
inline namespace GAPLESS_PATH {

std::size_t prepared_linear_bytes(int in, int out, PreparedFormat format);
Status prepare_linear(Stream& stream, const PrepareLinearParams& params);
Status restore_linear(Stream& stream, const RestoreLinearParams& params);

}  // namespace GAPLESS_PATH
}  // namespace cuda
}  // namespace gapless
