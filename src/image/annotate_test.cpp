#include "image/annotate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gapless {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Image grey_image(int width, int height) {
  return {width, height, Pixels(static_cast<std::size_t>(width * height * 3), 90)};
}

Colour pixel(const Image& image, int x, int y) {
  const auto at = static_cast<std::size_t>((y * image.width + x) * 3);
  return {image.rgb[at], image.rgb[at + 1], image.rgb[at + 2]};
}

constexpr Colour kGrey = {90, 90, 90};

TEST(AnnotateTest, PointIsADotWithARimWhereItWasAskedFor) {
  Image image = grey_image(320, 320);
  draw_point(image, {0.25f, 0.75f}, mark_colour(0));
  EXPECT_EQ(pixel(image, 80, 240), mark_colour(0));
  EXPECT_EQ(pixel(image, 80 + 6, 240), (Colour{255, 255, 255}));  // radius 5, rim 2
  EXPECT_EQ(pixel(image, 80, 240 - 7), (Colour{255, 255, 255}));
  EXPECT_EQ(pixel(image, 80 + 8, 240), kGrey);
  EXPECT_EQ(pixel(image, 240, 80), kGrey);
}

TEST(AnnotateTest, BoxIsAFrameAroundItsInside) {
  Image image = grey_image(320, 320);
  draw_box(image, {0.25f, 0.5f, 0.75f, 1.0f}, mark_colour(1));
  EXPECT_EQ(pixel(image, 160, 240), kGrey);                   // inside
  EXPECT_EQ(pixel(image, 79, 240), kGrey);                    // outside
  EXPECT_EQ(pixel(image, 80, 240), (Colour{255, 255, 255}));  // rim
  EXPECT_EQ(pixel(image, 82, 240), mark_colour(1));           // left
  EXPECT_EQ(pixel(image, 238, 240), mark_colour(1));          // right
  EXPECT_EQ(pixel(image, 160, 162), mark_colour(1));          // top
  EXPECT_EQ(pixel(image, 160, 317), mark_colour(1));          // bottom, at the picture's edge
  EXPECT_EQ(pixel(image, 160, 319), (Colour{255, 255, 255}));
}

TEST(AnnotateTest, ThicknessFollowsThePicture) {
  Image small = grey_image(160, 160);
  Image large = grey_image(1600, 1600);
  draw_box(small, {0.1f, 0.1f, 0.9f, 0.9f}, mark_colour(0));
  draw_box(large, {0.1f, 0.1f, 0.9f, 0.9f}, mark_colour(0));
  const auto num_changed = [](const Image& image) {
    int count = 0;
    for (int x = 0; x < image.width / 2; ++x) {
      if (pixel(image, x, image.height / 2) != kGrey) ++count;
    }
    return count;
  };
  EXPECT_EQ(num_changed(small), 4);
  EXPECT_EQ(num_changed(large), 30);
}

TEST(AnnotateTest, OddValuesAndTinyPicturesAreSafe) {
  for (const auto& [width, height] : {std::pair{1, 1}, std::pair{1, 50}, std::pair{50, 1}}) {
    Image image = grey_image(width, height);
    draw_point(image, {-kInfinity, kInfinity}, mark_colour(2));
    draw_box(image, {-5, -5, 7, 7}, mark_colour(3));
    draw_box(image, {0.5f, 0.5f, 0.5f, 0.5f}, mark_colour(3));
    draw_box(image, {0.9f, 0.9f, 0.1f, 0.1f}, mark_colour(3));
  }
  Image untouched = grey_image(50, 50);
  draw_point(untouched, {kNan, 0.5f}, mark_colour(0));
  draw_box(untouched, {0, kNan, 1, 1}, mark_colour(0));
  EXPECT_EQ(untouched.rgb, grey_image(50, 50).rgb);
  Image empty;
  draw_point(empty, {0.5f, 0.5f}, mark_colour(0));
  draw_box(empty, {0, 0, 1, 1}, mark_colour(0));
}

TEST(AnnotateTest, MarksBeyondThePictureAreDrawnAtItsEdge) {
  Image image = grey_image(320, 320);
  draw_point(image, {2.0f, 0.5f}, mark_colour(0));
  EXPECT_EQ(pixel(image, 319, 160), mark_colour(0));
  draw_box(image, {-3.0f, -kInfinity, 5.0f, 9.0f}, mark_colour(1));
  EXPECT_EQ(pixel(image, 2, 300), mark_colour(1));
  EXPECT_EQ(pixel(image, 317, 300), mark_colour(1));
}

TEST(AnnotateTest, ColoursRepeatAndNeighboursDiffer) {
  EXPECT_EQ(mark_colour(0), mark_colour(8));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NE(mark_colour(i), mark_colour(i + 1));
}

}  // namespace
}  // namespace gapless
