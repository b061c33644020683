// Lossless WebP, decoded row by row.
//
// libwebp decodes all that the bytes it was given make, beginning with an eighth of the file, and asks nobody meanwhile: of a picture
// whose first half is of one colour that can be nearly everything. This decoder asks for each row whether to go on. It makes the
// pixels that libwebp makes (LosslessWebpTest).
//
// The format: "Specification for WebP Lossless Bitstream". ARGB values are numbers 0xaarrggbb.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "image/stop_check.h"

namespace gapless::internal {

// The chunk "VP8L" of a WebP file, without its header, with the byte that may fill it. Empty: there is none.
std::span<const std::uint8_t> lossless_webp_chunk(std::span<const std::uint8_t> file);

// Decodes such a chunk of exactly width x height into `to`, whose rows are row_bytes apart: RGB, or RGBA with straight alpha.
// Beside them it holds 4 bytes a pixel. Cancelled: `stop` said so.
Status decode_lossless_webp(std::span<const std::uint8_t> chunk, int width, int height,
                            int num_channels, std::uint8_t* to, std::size_t row_bytes,
                            const StopCheck& stop);

}  // namespace gapless::internal
