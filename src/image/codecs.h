// The three decoders behind decode_image. Each gets bytes whose header was parsed and found within
// bounds, and refuses a file whose own idea of the size differs from that header's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "image/decode_image.h"

namespace gapless::internal {

struct Raster {
  int width = 0;
  int height = 0;
  int num_channels = 3;              // 3 = RGB, 4 = RGBA (straight alpha)
  std::vector<std::uint8_t> pixels;  // [height][width][num_channels]
};

// Cancelled: `stop` said so.
StatusOr<Raster> decode_jpeg(std::span<const std::byte> bytes, const ImageInfo& info,
                             const StopCheck& stop);
StatusOr<Raster> decode_png(std::span<const std::byte> bytes, const ImageInfo& info,
                            const StopCheck& stop);
StatusOr<Raster> decode_webp(std::span<const std::byte> bytes, const ImageInfo& info,
                             const StopCheck& stop);

}  // namespace gapless::internal
