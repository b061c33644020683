#include "image/svg_path.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>
#include <string>

namespace gapless {
namespace {

constexpr MarkBox kWhole{0, 0, 1, 1};

// The share of the unit square that lies inside, by a picture of many pixels.
double area_of(const std::string& path) {
  const auto polygons = flatten_svg_path(path, 1e-4);
  EXPECT_TRUE(polygons.ok()) << path;
  if (!polygons.ok()) return -1;
  constexpr int kSide = 400;
  const auto inside = fill_polygons(*polygons, kWhole, kSide, kSide);
  return std::accumulate(inside.begin(), inside.end(), 0.0) / (kSide * kSide);
}

TEST(SvgPath, LinesAreWhatTheySay) {
  EXPECT_DOUBLE_EQ(area_of("M 0 0 L 1 0 L 1 1 L 0 1 Z"), 1);
  EXPECT_DOUBLE_EQ(area_of("M 0.25 0.25 H 0.75 V 0.75 H 0.25 z"), 0.25);
  EXPECT_DOUBLE_EQ(area_of("m 0.25 0.25 h 0.5 v 0.5 h -0.5"), 0.25) << "closed by itself";
  EXPECT_DOUBLE_EQ(area_of("M0,0 1,0 1,.5 0,.5"), 0.5) << "pairs behind a move are lines";
  EXPECT_NEAR(area_of("M 0 0 l 1 1 l -1 0"), 0.5, 0.002);
  EXPECT_DOUBLE_EQ(area_of(""), 0);
  EXPECT_DOUBLE_EQ(area_of("M 0.5 0.5"), 0);
}

TEST(SvgPath, HolesFollowTheNonzeroRule) {
  const std::string outer = "M 0 0 H 1 V 1 H 0 Z ";
  EXPECT_DOUBLE_EQ(area_of(outer + "M 0.25 0.25 H 0.75 V 0.75 H 0.25 Z"), 1);
  EXPECT_DOUBLE_EQ(area_of(outer + "M 0.25 0.25 V 0.75 H 0.75 V 0.25 Z"), 0.75)
      << "other way round";
  EXPECT_DOUBLE_EQ(area_of("M 0.5 0.5 h 0.25 v 0.25 h -0.25 z m 0.25 0.25 h 0.25 v 0.25 h -0.25 z"),
                   0.125)
      << "behind a close a move starts from the first point";
}

// A cubic's area against its chord, and curves that say the same in other words.
TEST(SvgPath, CurvesAreFlattenedWithinTheirTolerance) {
  // Bezier with both controls at height 1 over a chord of 1: 3/4 high, area 3/5.
  EXPECT_NEAR(area_of("M 0 0 C 0 1 1 1 1 0 Z"), 0.6, 0.003);
  EXPECT_NEAR(area_of("M 0 0 Q 0.5 1 1 0 Z"), 1.0 / 3, 0.003);
  const double two = area_of("M 0 0.5 C 0.1 0 0.4 0 0.5 0.5 C 0.6 1 0.9 1 1 0.5 L 1 1 L 0 1 Z");
  EXPECT_NEAR(area_of("M 0 0.5 C 0.1 0 0.4 0 0.5 0.5 S 0.9 1 1 0.5 L 1 1 L 0 1 Z"), two, 0.001);
  EXPECT_NEAR(area_of("M 0 0.5 c 0.1 -0.5 0.4 -0.5 0.5 0 s 0.4 0.5 0.5 0 V 1 H 0 Z"), two, 0.001);
  EXPECT_NEAR(area_of("M 0 0.5 Q 0.25 0 0.5 0.5 T 1 0.5 V 1 H 0 Z"), 0.5, 0.003);
  EXPECT_NEAR(area_of("M 0 0.5 q 0.25 -0.5 0.5 0 t 0.5 0 V 1 H 0 Z"), 0.5, 0.003);
}

TEST(SvgPath, ArcsAreEllipses) {
  const double quarter = std::numbers::pi / 4;
  EXPECT_NEAR(area_of("M 0 0.5 A 0.5 0.5 0 0 1 1 0.5 A 0.5 0.5 0 0 1 0 0.5 Z"), quarter, 0.003);
  EXPECT_NEAR(area_of("M 0.25 0.5 a 0.25 0.5 0 0 1 0.5 0 a 0.25 0.5 0 0 1 -0.5 0 Z"), quarter / 2,
              0.003);
  EXPECT_NEAR(area_of("M 0.5 0.25 a 0.25 0.5 90 0 1 0 0.5 a 0.25 0.5 90 0 1 0 -0.5 Z"), quarter / 2,
              0.003);
  // The larger and the smaller part of a circle around (0.5, 0.5) that a chord cuts.
  const double small = area_of("M 0.5 0.1 A 0.4 0.4 0 0 1 0.9 0.5 Z");
  EXPECT_NEAR(small, 0.16 * (quarter - 0.5), 0.003);
  EXPECT_NEAR(area_of("M 0.5 0.1 A 0.4 0.4 0 1 0 0.9 0.5 Z"), 0.16 * std::numbers::pi - small,
              0.004);
  EXPECT_NEAR(area_of("M 0 0.5 A 0.1 0.1 0 0 1 1 0.5 Z"), quarter / 2, 0.003) << "radii grow";
  EXPECT_DOUBLE_EQ(area_of("M 0 0 A 0 1 0 0 1 1 0 L 1 1 Z"), area_of("M 0 0 L 1 0 L 1 1 Z"));
}

TEST(SvgPath, WhatIsNoPathIsAnError) {
  for (const char* path : {"L 1 1", "M", "M 1", "M 1 1 L 2", "M 1 1 B 2 2", "1 1",
                           "M 1 1 C 1 2 3 4 5", "M 1 x", "M nan 1", "M 0 0 Z 1"}) {
    EXPECT_FALSE(flatten_svg_path(path, 0.01).ok()) << path;
  }
}

TEST(SvgPath, ItLiesInItsBoxAndInThePicture) {
  const auto square = flatten_svg_path("M 0 0 H 1 V 1 H 0 Z", 0.01).value();
  const auto inside = fill_polygons(square, {0.25f, 0.5f, 0.75f, 1}, 8, 4);
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 8; ++x) {
      EXPECT_EQ(inside[static_cast<std::size_t>(8 * y + x)], x >= 2 && x < 6 && y >= 2)
          << x << " " << y;
    }
  }
  const auto large = flatten_svg_path("M -9 -9 H 9 V 9 H -9 Z", 0.01).value();
  const auto all = fill_polygons(large, kWhole, 8, 4);
  EXPECT_EQ(std::accumulate(all.begin(), all.end(), 0), 32);
}

TEST(SvgPath, IsDrawnIntoThePicture) {
  Image image;
  image.width = image.height = 32;
  image.rgb.assign(32 * 32 * 3, 100);
  draw_path(image, "M 0 0 H 1 V 1 H 0 Z", {0.25f, 0.25f, 0.75f, 0.75f}, {200, 0, 0});
  const auto red_at = [&](int x, int y) {
    return image.rgb[static_cast<std::size_t>(3 * (32 * y + x))];
  };
  EXPECT_EQ(red_at(7, 16), 100) << "outside";
  EXPECT_EQ(red_at(8, 16), 200) << "the edge";
  EXPECT_EQ(red_at(16, 16), 150) << "inside";
  const Image before = image;
  draw_path(image, "no path", kWhole, {0, 0, 0});
  EXPECT_EQ(image.rgb, before.rgb);
}

}  // namespace
}  // namespace gapless
