// The one EXIF field that matters for pixels.
#pragma once

#include <cstddef>
#include <span>

#include "image/image.h"
#include "image/stop_check.h"

namespace gapless {

// Value of the orientation tag (0x0112) in the first directory of a TIFF block, with or without
// the "Exif\0\0" lead. 1 where it is missing, broken or out of 1..8: bad metadata never refuses a
// picture.
int exif_orientation(std::span<const std::byte> block);

// Turns the stored raster upright. Values 5..8 swap width and height. Cancelled: `stop` said so.
StatusOr<Image> apply_orientation(Image stored, int orientation, const StopCheck& stop = {});

}  // namespace gapless
