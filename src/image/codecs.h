// The four decoders behind decode_image. Each gets bytes whose header was parsed and found within
// bounds, and refuses a file whose own idea of the size differs from that header's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "image/decode_image.h"
#include "image/image.h"

namespace gapless::internal {

struct Raster {
  int width = 0;
  int height = 0;
  int num_channels = 3;  // 3 = RGB, 4 = RGBA (straight alpha)
  Pixels pixels;         // [height][width][num_channels]
};

// Rows that on_rows was told of stay where they are in raster.pixels, also after an error. It may
// be empty. Cancelled: `stop` said so.
// on_rows is called after every few rows. Helpers share the work where
// jpeg_decodes_in_bands() says so: reading the bits is half of the work, and each thread does that for itself, but
// makes the pixels of its bands alone. nullptr: none.
Status decode_jpeg(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                   const StopCheck& stop, DecodeHelpers* helpers, Raster& raster);
bool jpeg_decodes_in_bands(const ImageInfo& info);
// on_rows is called after every few rows where these are final: of a picture
// without alpha that is not interlaced. Otherwise never.
Status decode_png(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                  const StopCheck& stop, Raster& raster);
StatusOr<Raster> decode_webp(std::span<const std::byte> bytes, const ImageInfo& info,
                             const StopCheck& stop);
StatusOr<Raster> decode_gif(std::span<const std::byte> bytes, const ImageInfo& info,
                            const StopCheck& stop);

}  // namespace gapless::internal
