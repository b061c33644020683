// RGB pictures to JPEG bytes, for loads and tests.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "image/image.h"

namespace gapless {

// Baseline, colour at half the resolution (4:2:0), as most cameras and browsers write them.
// `quality`: 1 to 100.
StatusOr<std::vector<std::byte>> encode_jpeg(const Image& image, int quality);

}  // namespace gapless
