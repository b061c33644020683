// A decoded picture in ordinary memory.
#pragma once

#include <cstdint>
#include <vector>

namespace gapless {

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;  // [height][width][3], 8 bits, encoded sRGB as the file had it
};

}  // namespace gapless
