#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/decode_image.h"
#include "image/test_images.h"
#include "image/write_png.h"

namespace gapless {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

Pixels decoded(const FileBytes& file, const DecodeOptions& options = {}) {
  const auto image = decode_image(file, options);
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  return image.ok() ? image->rgb : Pixels();
}

TEST(DecodePngTest, RgbIsExact) {
  const Image picture = pattern_image(33, 21);
  EXPECT_EQ(decoded(make_png(33, 21, picture.rgb)), picture.rgb);
}

TEST(DecodePngTest, InterlacedIsExact) {
  for (const auto& [width, height] : {std::pair{33, 21}, std::pair{1, 9}, std::pair{9, 1}}) {
    const Image picture = pattern_image(width, height);
    EXPECT_EQ(decoded(make_png(width, height, picture.rgb, {.interlaced = true})), picture.rgb);
  }
}

TEST(DecodePngTest, SmallGreysAreSpreadOverTheByte) {
  const std::vector<std::uint8_t> one_bit = {0b01000000};
  EXPECT_THAT(decoded(make_png(2, 1, one_bit, {.bit_depth = 1, .colour_type = 0})),
              ElementsAre(0, 0, 0, 255, 255, 255));
  const std::vector<std::uint8_t> two_bits = {0b00011011};
  EXPECT_THAT(decoded(make_png(4, 1, two_bits, {.bit_depth = 2, .colour_type = 0})),
              ElementsAre(0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255));
  const std::vector<std::uint8_t> four_bits = {0x3f};
  EXPECT_THAT(decoded(make_png(2, 1, four_bits, {.bit_depth = 4, .colour_type = 0})),
              ElementsAre(51, 51, 51, 255, 255, 255));
}

TEST(DecodePngTest, SixteenBitsKeepTheHighByte) {
  const std::vector<std::uint8_t> grey = {0x12, 0xff, 0xfe, 0x80};
  EXPECT_THAT(decoded(make_png(2, 1, grey, {.bit_depth = 16, .colour_type = 0})),
              ElementsAre(0x12, 0x12, 0x12, 0xfe, 0xfe, 0xfe));
  const std::vector<std::uint8_t> rgb = {0x12, 0xff, 0x34, 0xff, 0x56, 0xff};
  EXPECT_THAT(decoded(make_png(1, 1, rgb, {.bit_depth = 16, .colour_type = 2})),
              ElementsAre(0x12, 0x34, 0x56));
}

TEST(DecodePngTest, AlphaIsDropped) {
  const std::vector<std::uint8_t> rgba = {100, 0, 255, 128, 10, 20, 30, 0, 1, 2, 3, 255};
  EXPECT_THAT(decoded(make_png(3, 1, rgba, {.colour_type = 6})),
              ElementsAre(100, 0, 255, 10, 20, 30, 1, 2, 3));
  const std::vector<std::uint8_t> grey_alpha = {100, 128, 50, 255};
  EXPECT_THAT(decoded(make_png(2, 1, grey_alpha, {.colour_type = 4})),
              ElementsAre(100, 100, 100, 50, 50, 50));
}

TEST(DecodePngTest, PaletteWithAndWithoutTransparency) {
  PngSpec spec{.bit_depth = 8, .colour_type = 3, .palette = {10, 20, 30, 200, 100, 0}};
  const std::vector<std::uint8_t> indices = {1, 0};
  EXPECT_THAT(decoded(make_png(2, 1, indices, spec)), ElementsAre(200, 100, 0, 10, 20, 30));
  spec.palette_alpha = {0};
  const FileBytes file = make_png(2, 1, indices, spec);
  EXPECT_THAT(decoded(file), ElementsAre(200, 100, 0, 10, 20, 30));
  spec.bit_depth = 1;
  const std::vector<std::uint8_t> packed = {0b10000000};
  EXPECT_THAT(decoded(make_png(2, 1, packed, spec)), ElementsAre(200, 100, 0, 10, 20, 30));
}

TEST(DecodePngTest, TransparentKeyColoursStayThemselves) {
  const std::vector<std::uint8_t> grey = {7, 8};
  const PngSpec grey_spec{.colour_type = 0, .transparent_key = {7}};
  EXPECT_THAT(decoded(make_png(2, 1, grey, grey_spec)), ElementsAre(7, 7, 7, 8, 8, 8));
  const std::vector<std::uint8_t> rgb = {1, 2, 3, 1, 2, 4};
  const PngSpec rgb_spec{.transparent_key = {1, 2, 3}};
  EXPECT_THAT(decoded(make_png(2, 1, rgb, rgb_spec)), ElementsAre(1, 2, 3, 1, 2, 4));
  const std::vector<std::uint8_t> deep = {0x07, 0x00, 0x07, 0x01};
  const PngSpec deep_spec{.bit_depth = 16, .colour_type = 0, .transparent_key = {0x0700}};
  EXPECT_THAT(decoded(make_png(2, 1, deep, deep_spec)), ElementsAre(7, 7, 7, 7, 7, 7));
}

TEST(DecodePngTest, HugeHeaderIsRefusedByItsSize) {
  const auto image = decode_image(png_header_only(50'000, 50'000));
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(image.status().message(),
              HasSubstr("PNG image of 50000x50000: 2500000000 pixels, more than the 100000000"));
  EXPECT_THAT(decode_image(png_header_only(100'000, 10)).status().message(),
              HasSubstr("a side may have at most 65535"));
}

// Within bounds, but deflate cannot make that many pixels of so few bytes: no raster is made.
TEST(DecodePngTest, LargeHeaderOverFewBytesIsTruncated) {
  const auto image = decode_image(png_header_only(10'000, 10'000));
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.status().message(), HasSubstr("cannot hold 10000x10000 pixels"));
}

TEST(DecodePngTest, ZeroSidesAreRefused) {
  for (const auto& file : {png_header_only(0, 5), png_header_only(5, 0), png_header_only(0, 0)}) {
    const auto image = decode_image(file);
    ASSERT_FALSE(image.ok());
    EXPECT_THAT(image.status().message(), HasSubstr("a side of zero pixels"));
  }
}

TEST(DecodePngTest, ADamagedPixelChunkIsRefused) {
  FileBytes file = make_png(33, 21, pattern_image(33, 21).rgb);
  file[file.size() / 2] ^= std::byte{0x40};
  const auto image = decode_image(file);
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.status().message(), HasSubstr("PNG: IDAT"));
}

TEST(DecodePngTest, WrittenFilesReadBack) {
  const Image picture = pattern_image(50, 31);
  const auto file = encode_png(picture);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(decoded(*file), picture.rgb);

  const std::string path = ::testing::TempDir() + "/written.png";
  ASSERT_TRUE(write_png(path, picture).ok());
  const Status bad = write_png("/no/such/folder/x.png", picture);
  EXPECT_THAT(bad.to_string(), HasSubstr("/no/such/folder/x.png"));
  EXPECT_THAT(write_png(path, Image{}).to_string(), HasSubstr("written.png"));
}

}  // namespace
}  // namespace gapless
