#include "image/resize_lanczos.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "image/pillow_goldens.h"
#include "image/test_images.h"

namespace gapless {
namespace {

using ::testing::ElementsAreArray;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

Image resize_lanczos(const Image& image, int out_width, int out_height) {
  const std::size_t row_bytes = static_cast<std::size_t>(out_width) * 3;
  Image out{out_width, out_height, {}};
  out.rgb.resize(row_bytes * static_cast<std::size_t>(out_height));
  LanczosResize resize(
      image.width, image.height, out_width, out_height, [&](int y, const std::uint8_t* row) {
        std::copy_n(row, row_bytes, out.rgb.begin() + y * static_cast<std::ptrdiff_t>(row_bytes));
      });
  PictureRows rows(image.rgb.data(), image.height);
  run_resizes({&resize, 1}, rows, nullptr);
  return out;
}

TEST(ResizeLanczosTest, BitEqualToPillow) {
  for (const ResizeGolden& golden : kResizeGoldens) {
    SCOPED_TRACE(fmt::format("{}x{} to {}x{}", golden.width, golden.height, golden.out_width,
                             golden.out_height));
    const Image out = resize_lanczos(pattern_image(golden.width, golden.height), golden.out_width,
                                     golden.out_height);
    ASSERT_EQ(out.width, golden.out_width);
    ASSERT_EQ(out.height, golden.out_height);
    const std::span<const std::uint8_t> rgb(out.rgb);
    EXPECT_THAT(rgb.first(3), ElementsAreArray(golden.first_pixel));
    EXPECT_THAT(rgb.last(3), ElementsAreArray(golden.last_pixel));
    EXPECT_EQ(fnv1a(rgb), golden.fnv1a);
  }
}

TEST(ResizeLanczosTest, AFlatPictureStaysFlat) {
  for (const std::uint8_t value : {0, 1, 128, 254, 255}) {
    const Image flat{50, 40, Pixels(50 * 40 * 3, value)};
    EXPECT_THAT(resize_lanczos(flat, 31, 77).rgb, ::testing::Each(value));
  }
}

TEST(ResizeLanczosTest, ExtremeShapesStayInBounds) {
  const Image tall{1, 65535, Pixels(65535 * 3, 9)};
  EXPECT_THAT(resize_lanczos(tall, 378, 378).rgb, ::testing::Each(9));
  const Image wide{65535, 1, Pixels(65535 * 3, 9)};
  EXPECT_THAT(resize_lanczos(wide, 378, 378).rgb, ::testing::Each(9));
}

}  // namespace
}  // namespace gapless
