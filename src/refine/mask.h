// A mask of a picture, or of a part of it, and what makes it fit to be outlined.
#pragma once

#include <cstdint>
#include <vector>

namespace gapless {

struct Mask {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> inside = {};  // [height][width], 0 or 1

  static Mask empty(int width, int height) {
    return {width, height,
            std::vector<std::uint8_t>(static_cast<std::size_t>(width) *
                                      static_cast<std::size_t>(height))};
  }
  std::uint8_t& at(int x, int y) { return inside[index(x, y)]; }
  // Outside of the mask nothing is inside.
  bool is_inside(int x, int y) const {
    return x >= 0 && x < width && y >= 0 && y < height && inside[index(x, y)] != 0;
  }

 private:
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
           static_cast<std::size_t>(x);
  }
};

// Sides of a mask behind which its picture goes on.
struct OpenSides {
  bool left = false, top = false, right = false, bottom = false;
};

// Fills holes of fewer than min_pixels, then drops islands of fewer; of islands that are all small the largest stays. Pixels that
// touch at a corner belong together. What reaches an open side goes on there, so it is no small hole.
void remove_specks(Mask& mask, double min_pixels, const OpenSides& open);

// Closes gaps of one or two pixels: it grows by a 3x3 square and shrinks by it again.
void close_gaps(Mask& mask);

}  // namespace gapless
