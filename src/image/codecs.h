// The four decoders behind decode_image. Each gets bytes whose header was parsed and found within
// bounds, and refuses a file whose own idea of the size differs from that header's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "image/decode_image.h"
#include "image/image.h"
#include "image/raster_memory.h"

namespace gapless::internal {

struct Raster {
  int width = 0;
  int height = 0;
  int num_channels = 3;  // 3 = RGB, 4 = RGBA (straight alpha)
  int rows_kept = 0;     // 0: all
  Pixels pixels;         // [rows_kept or height][width][num_channels]; row y at y % rows_kept

  std::size_t row_bytes() const {
    return static_cast<std::size_t>(width) * static_cast<std::size_t>(num_channels);
  }
  // Room for all that it keeps; touches none of it.
  void reserve() {
    const int num_rows = rows_kept > 0 ? rows_kept : height;
    reserve_raster(pixels, row_bytes() * static_cast<std::size_t>(num_rows));
  }
  // Where rows [y, y + num_rows) go, at most kStripRows, y a multiple of it. `pixels` grows with them: a header that
  // promises a large picture over a few bytes of data does not touch memory for all of it.
  std::uint8_t* rows_at(int y, int num_rows) {
    const std::size_t at =
        row_bytes() * static_cast<std::size_t>(rows_kept > 0 ? y % rows_kept : y);
    pixels.resize(std::max(pixels.size(), at + row_bytes() * static_cast<std::size_t>(num_rows)));
    return pixels.data() + at;
  }
};

// Rows decoded before they are told of.
inline constexpr int kStripRows = 32;
static_assert(kRowsKept % (2 * kStripRows) == 0);

// Rows that on_rows was told of stay where they are in raster.pixels, also after an error. It may
// be empty. Cancelled: `stop` said so.
// on_rows is called after every few rows where info.comes_by_rows, and otherwise never.
// Helpers share the work where
// jpeg_decodes_in_bands() says so: reading the bits is half of the work, and each thread does that for itself, but
// makes the pixels of its bands alone. nullptr: none. Bands keep all rows: rows_kept is 0.
Status decode_jpeg(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                   int rows_kept, const StopCheck& stop, DecodeHelpers* helpers, Raster& raster);
bool jpeg_decodes_in_bands(const ImageInfo& info, const DecodeHelpers* helpers);
Status decode_png(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                  int rows_kept, const StopCheck& stop, Raster& raster);
StatusOr<Raster> decode_webp(std::span<const std::byte> bytes, const ImageInfo& info,
                             const StopCheck& stop);
StatusOr<Raster> decode_gif(std::span<const std::byte> bytes, const ImageInfo& info,
                            const StopCheck& stop);

}  // namespace gapless::internal
