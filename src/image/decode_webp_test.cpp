#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/decode_image.h"
#include "image/test_images.h"

namespace gapless {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

TEST(DecodeWebpTest, LosslessIsExact) {
  for (const auto& [width, height] : {std::pair{33, 21}, std::pair{1, 300}, std::pair{300, 1}}) {
    const Image picture = pattern_image(width, height);
    const auto image = decode_image(make_webp(width, height, picture.rgb, 3));
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    EXPECT_EQ(image->rgb, picture.rgb);
  }
}

TEST(DecodeWebpTest, AlphaIsDropped) {
  const std::vector<std::uint8_t> rgba = {100, 0, 255, 128, 1, 2, 3, 255};
  const auto image = decode_image(make_webp(2, 1, rgba, 4));
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_THAT(image->rgb, ElementsAre(100, 0, 255, 1, 2, 3));
}

TEST(DecodeWebpTest, FirstFrameStandsAtItsOffsetOnTheCanvas) {
  const std::vector<std::uint8_t> frame(4 * 2 * 3, 9);
  // The second canvas may lie where the first one's pixels were.
  for (int time = 0; time < 2; ++time) {
    const auto image = decode_image(webp_animation(make_webp(4, 2, frame, 3), 4, 2, 2, 4, 8, 10));
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    ASSERT_EQ(image->width, 8);
    ASSERT_EQ(image->height, 10);
    for (int y = 0; y < 10; ++y) {
      for (int x = 0; x < 8; ++x) {
        const bool inside = x >= 2 && x < 6 && y >= 4 && y < 6;
        EXPECT_EQ(image->rgb[static_cast<std::size_t>((y * 8 + x) * 3)], inside ? 9 : 0)
            << time << ": " << x << ", " << y;
      }
    }
  }
}

TEST(DecodeWebpTest, FrameOutsideTheCanvasIsRefused) {
  const std::vector<std::uint8_t> frame(4 * 2 * 3, 9);
  EXPECT_FALSE(decode_image(webp_animation(make_webp(4, 2, frame, 3), 4, 2, 6, 4, 8, 10)).ok());
}

// The frame's header fits the canvas, its bitstream does not: it must not be drawn past the end.
TEST(DecodeWebpTest, FrameWhoseBitstreamIsLargerThanTheCanvasIsRefused) {
  const std::vector<std::uint8_t> frame(20 * 30 * 3, 9);
  EXPECT_FALSE(decode_image(webp_animation(make_webp(20, 30, frame, 3), 4, 2, 0, 0, 8, 10)).ok());
}

TEST(DecodeWebpTest, TruncationTellsHowMuchIsThere) {
  FileBytes file = make_webp(33, 21, pattern_image(33, 21).rgb, 3);
  const std::size_t full = file.size();
  file.resize(full - 1);
  const auto image = decode_image(file);
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.status().message(), HasSubstr(fmt::format("{} of {} bytes", full - 1, full)));
}

}  // namespace
}  // namespace gapless
