#include "refine/outline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "image/svg_path.h"

namespace gapless {
namespace {

template <typename Inside>
Mask mask_where(int width, int height, const Inside& inside) {
  Mask mask = Mask::empty(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) mask.at(x, y) = inside(x, y) ? 1 : 0;
  }
  return mask;
}

// Pixels of both, by pixels of either.
double overlap(const Mask& mask, const Outline& outline, int left, int top, int width, int height) {
  const StatusOr<PathPolygons> polygons = flatten_svg_path(outline.path, 1e-4);
  EXPECT_TRUE(polygons.ok()) << outline.path;
  const std::vector<std::uint8_t> drawn = fill_polygons(*polygons, outline.box, width, height);
  int both = 0, either = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const bool a = mask.is_inside(x - left, y - top);
      const bool b = drawn[static_cast<std::size_t>(y * width + x)] != 0;
      both += a && b ? 1 : 0;
      either += a || b ? 1 : 0;
    }
  }
  return static_cast<double>(both) / either;
}

TEST(OutlineTest, APathDrawsTheMaskAgain) {
  const auto in_disc = [](int x, int y, int cx, int cy, int r) {
    return std::hypot(x - cx, y - cy) < r;
  };
  const Mask disc = mask_where(120, 90, [&](int x, int y) { return in_disc(x, y, 60, 40, 33); });
  // A ring, and something apart that touches the mask's edge.
  const Mask ring = mask_where(120, 90, [&](int x, int y) {
    return (in_disc(x, y, 50, 45, 40) && !in_disc(x, y, 55, 45, 20)) || (x > 100 && y < 30);
  });
  const Mask slanted = mask_where(120, 90, [](int x, int y) { return 3 * y > x && y < 80; });
  for (const Mask* mask : {&disc, &ring, &slanted}) {
    const std::optional<Outline> outline = outline_of(*mask, 7, 11, 200, 150);
    ASSERT_TRUE(outline);
    EXPECT_GT(overlap(*mask, *outline, 7, 11, 200, 150), 0.97) << outline_tracer();
    EXPECT_LT(outline->path.size(), 2000u) << "an outline, not a list of pixels";
  }
}

TEST(OutlineTest, TheBoxIsThatOfTheMasksPixels) {
  const Mask mask =
      mask_where(40, 30, [](int x, int y) { return x >= 5 && x < 25 && y >= 8 && y < 18; });
  const std::optional<Outline> outline = outline_of(mask, 10, 20, 100, 200);
  ASSERT_TRUE(outline);
  EXPECT_FLOAT_EQ(outline->box.x_min, 0.15f);
  EXPECT_FLOAT_EQ(outline->box.y_min, 0.14f);
  EXPECT_FLOAT_EQ(outline->box.x_max, 0.35f);
  EXPECT_FLOAT_EQ(outline->box.y_max, 0.19f);
}

TEST(OutlineTest, NumbersHaveThreeDecimalsAndNoZeroInFront) {
  const Mask mask = mask_where(10, 10, [](int x, int y) { return x + y < 9; });
  const std::optional<Outline> outline = outline_of(mask, 0, 0, 10, 10);
  ASSERT_TRUE(outline);
  EXPECT_EQ(outline->path.front(), 'M');
  EXPECT_EQ(outline->path.back(), 'z');
  EXPECT_NE(outline->path.find("1.000"), std::string::npos) << outline->path;
  EXPECT_EQ(outline->path.find("0.0"), std::string::npos) << outline->path;
  EXPECT_NE(outline->path.find(",.000"), std::string::npos) << outline->path;
}

// Pixels that touch at a corner, a single one, one at the edge: the walk comes back to its beginning.
TEST(OutlineTest, EveryMaskOfFourByFourEnds) {
  for (unsigned bits = 1; bits < 1u << 16; ++bits) {
    const Mask mask =
        mask_where(4, 4, [bits](int x, int y) { return (bits >> (4 * y + x) & 1u) != 0; });
    ASSERT_TRUE(outline_of(mask, 0, 0, 4, 4) || outline_tracer() == "potrace") << bits;
  }
}

TEST(OutlineTest, AnEmptyMaskHasNone) {
  EXPECT_FALSE(outline_of(Mask::empty(5, 5), 0, 0, 5, 5));
}

}  // namespace
}  // namespace gapless
