#include "image/annotate.h"

#include <algorithm>
#include <cmath>

namespace gapless {
namespace {

constexpr std::array<Colour, 8> kColours = {{{255, 40, 40},
                                             {0, 200, 80},
                                             {40, 110, 255},
                                             {255, 170, 0},
                                             {220, 50, 220},
                                             {0, 200, 220},
                                             {170, 230, 0},
                                             {255, 110, 160}}};

// White around dark colours, black around light ones.
Colour rim_colour(Colour colour) {
  const int luma = (299 * colour[0] + 587 * colour[1] + 114 * colour[2]) / 1000;
  return luma > 128 ? Colour{0, 0, 0} : Colour{255, 255, 255};
}

int line_thickness(const Image& image) {
  return std::max(1, std::min(image.width, image.height) / 160);
}

// The pixel that a fraction of `size` falls into.
int to_pixel(float fraction, int size) {
  const float clamped = std::clamp(fraction, 0.0f, 1.0f);
  return std::min(size - 1, static_cast<int>(clamped * static_cast<float>(size)));
}

// Pixels [x0, x1) x [y0, y1), cut to the picture.
void fill(Image& image, int x0, int y0, int x1, int y1, Colour colour) {
  x0 = std::max(x0, 0);
  y0 = std::max(y0, 0);
  x1 = std::min(x1, image.width);
  y1 = std::min(y1, image.height);
  for (int y = y0; y < y1; ++y) {
    for (int x = x0; x < x1; ++x) {
      const std::size_t at = (static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) +
                              static_cast<std::size_t>(x)) *
                             3;
      std::copy(colour.begin(), colour.end(), image.rgb.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

// The frame of the rectangle [x0, x1) x [y0, y1), `thickness` pixels wide, inwards.
void fill_frame(Image& image, int x0, int y0, int x1, int y1, int thickness, Colour colour) {
  const int t = std::min({thickness, x1 - x0, y1 - y0});
  fill(image, x0, y0, x1, y0 + t, colour);
  fill(image, x0, y1 - t, x1, y1, colour);
  fill(image, x0, y0, x0 + t, y1, colour);
  fill(image, x1 - t, y0, x1, y1, colour);
}

void fill_disc(Image& image, int centre_x, int centre_y, int radius, Colour colour) {
  for (int dy = -radius; dy <= radius; ++dy) {
    // +0.5 makes small discs round instead of pointed.
    const double reach = (radius + 0.5) * (radius + 0.5) - static_cast<double>(dy) * dy;
    const int half = static_cast<int>(std::sqrt(reach));
    fill(image, centre_x - half, centre_y + dy, centre_x + half + 1, centre_y + dy + 1, colour);
  }
}

}  // namespace

Colour mark_colour(std::size_t index) {
  return kColours[index % kColours.size()];
}

void draw_point(Image& image, const MarkPoint& point, Colour colour) {
  if (std::isnan(point.x) || std::isnan(point.y) || image.rgb.empty()) return;
  const int x = to_pixel(point.x, image.width);
  const int y = to_pixel(point.y, image.height);
  const int thickness = line_thickness(image);
  const int radius = 2 * thickness + 1;
  fill_disc(image, x, y, radius + thickness, rim_colour(colour));
  fill_disc(image, x, y, radius, colour);
}

void draw_box(Image& image, const MarkBox& box, Colour colour) {
  if (std::isnan(box.x_min) || std::isnan(box.y_min) || std::isnan(box.x_max) ||
      std::isnan(box.y_max) || image.rgb.empty()) {
    return;
  }
  const int x0 = to_pixel(std::min(box.x_min, box.x_max), image.width);
  const int y0 = to_pixel(std::min(box.y_min, box.y_max), image.height);
  const int x1 = to_pixel(std::max(box.x_min, box.x_max), image.width) + 1;
  const int y1 = to_pixel(std::max(box.y_min, box.y_max), image.height) + 1;
  const int thickness = line_thickness(image);
  const int rim = std::max(1, thickness / 2);
  // The rim's frame first; the colour's, drawn over its middle, leaves a rim outside and inside.
  fill_frame(image, x0, y0, x1, y1, 2 * thickness + 2 * rim, rim_colour(colour));
  fill_frame(image, x0 + rim, y0 + rim, std::max(x1 - rim, x0 + rim + 1),
             std::max(y1 - rim, y0 + rim + 1), 2 * thickness, colour);
}

}  // namespace gapless
