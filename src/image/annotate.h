// Draws answers onto a picture, for people to look at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "image/image.h"

namespace gapless {

// Fractions of the picture's width and height, as the point and detect skills answer them. Values
// outside 0..1 are drawn at the edge; a mark with a NaN is not drawn.
struct MarkPoint {
  float x = 0;
  float y = 0;
};
struct MarkBox {
  float x_min = 0;
  float y_min = 0;
  float x_max = 0;
  float y_max = 0;
};

using Colour = std::array<std::uint8_t, 3>;  // RGB

// Colours that stand apart from each other, repeating after the last.
Colour mark_colour(std::size_t index);

// A filled dot, and a frame drawn inwards from the box's edges; both with a contrasting rim, so
// that they show on any background. Thickness follows the picture's shorter side.
void draw_point(Image& image, const MarkPoint& point, Colour colour);
void draw_box(Image& image, const MarkBox& box, Colour colour);

}  // namespace gapless
