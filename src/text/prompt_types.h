// What a prompt may say besides text.
#pragma once

#include <cstdint>

namespace gapless {

enum class CaptionLength : std::uint8_t { kShort, kNormal, kLong };

// A place in the image that the prompt refers to; normalised to [0, 1]. Width and height are 0 for
// a point.
struct SpatialRef {
  bool is_box = false;
  float x_center = 0;
  float y_center = 0;
  float width = 0;
  float height = 0;
};

}  // namespace gapless
