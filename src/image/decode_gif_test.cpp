#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/decode_image.h"
#include "image/test_images.h"

namespace gapless {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

// Index i is (i, 2 i, 255 - i).
std::vector<std::uint8_t> some_palette(int size) {
  std::vector<std::uint8_t> rgb;
  for (int i = 0; i < size; ++i) {
    rgb.insert(rgb.end(), {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(2 * i),
                           static_cast<std::uint8_t>(255 - i)});
  }
  return rgb;
}

std::vector<std::uint8_t> some_indices(int width, int height) {
  std::vector<std::uint8_t> indices;
  for (int i = 0; i < width * height; ++i)
    indices.push_back(static_cast<std::uint8_t>(i * 7 % 128));
  return indices;
}

Pixels colours_of(std::span<const std::uint8_t> indices, std::span<const std::uint8_t> palette) {
  Pixels rgb;
  for (const std::size_t index : indices) {
    rgb.insert(rgb.end(), palette.begin() + static_cast<std::ptrdiff_t>(3 * index),
               palette.begin() + static_cast<std::ptrdiff_t>(3 * index + 3));
  }
  return rgb;
}

TEST(DecodeGifTest, EveryPixelHasItsPalettesColour) {
  for (const auto& [width, height] : {std::pair{33, 21}, std::pair{1, 300}, std::pair{300, 1},
                                      std::pair{7, 3}, std::pair{1, 1}}) {
    const std::vector<std::uint8_t> indices = some_indices(width, height);
    const std::vector<std::uint8_t> palette = some_palette(128);
    for (const bool interlaced : {false, true}) {
      for (const bool local : {false, true}) {
        GifSpec spec{.interlaced = interlaced, .comment = local};
        spec.palette = local ? std::vector<std::uint8_t>(6, 77) : palette;
        if (local) spec.local_palette = palette;
        const auto image = decode_image(make_gif(width, height, indices, spec));
        ASSERT_TRUE(image.ok()) << image.status().to_string();
        EXPECT_EQ(image->width, width);
        EXPECT_EQ(image->height, height);
        EXPECT_EQ(image->rgb, colours_of(indices, palette)) << interlaced << local;
      }
    }
  }
}

TEST(DecodeGifTest, OfAnAnimationTheFirstFrame) {
  const std::vector<std::uint8_t> first = some_indices(8, 8), second(64, 9);
  const auto image =
      decode_image(make_gif(8, 8, first, {.palette = some_palette(128), .second_picture = second}));
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->rgb, colours_of(first, some_palette(128)));
}

// As Pillow's convert("RGB") has it.
TEST(DecodeGifTest, WhatThePictureLeavesFreeIsTransparentOrColourNought) {
  for (const int transparent : {-1, 5}) {
    const std::vector<std::uint8_t> indices = {1, 5, 3, 4};
    const auto image = decode_image(make_gif(2, 2, indices,
                                             {.palette = some_palette(8),
                                              .transparent = transparent,
                                              .left = 1,
                                              .top = 2,
                                              .canvas_width = 4,
                                              .canvas_height = 5}));
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    ASSERT_EQ(image->rgb.size(), 4u * 5 * 3);
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 4; ++x) {
        const bool inside = x >= 1 && x < 3 && y >= 2 && y < 4;
        const int expected = inside ? indices[static_cast<std::size_t>((y - 2) * 2 + x - 1)]
                                    : std::max(0, transparent);
        EXPECT_EQ(image->rgb[static_cast<std::size_t>((y * 4 + x) * 3)], expected)
            << x << ", " << y;
      }
    }
  }
}

TEST(DecodeGifTest, TheCanvasGrowsWithThePicture) {
  const GifSpec spec{
      .palette = some_palette(128), .left = 3, .canvas_width = 4, .canvas_height = 1};
  const FileBytes file = make_gif(8, 6, some_indices(8, 6), spec);
  const auto info = probe_image(file);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->width, 11);
  EXPECT_EQ(info->height, 6);
  const auto image = decode_image(file);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_EQ(image->width, 11);
}

TEST(DecodeGifTest, WithoutAPaletteItIsGrey) {
  const std::vector<std::uint8_t> indices = {0, 50, 100, 127};
  FileBytes file = make_gif(4, 1, indices, {.palette = some_palette(128)});
  // The header's flag and the palette behind it.
  file[10] &= std::byte{0x78};
  file.erase(file.begin() + 13, file.begin() + 13 + 128 * 3);
  const auto image = decode_image(file);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_THAT(image->rgb, ElementsAre(0, 0, 0, 50, 50, 50, 100, 100, 100, 127, 127, 127));
}

std::string gif_error(std::string_view text) {
  return decode_image(std::as_bytes(std::span(text))).status().message();
}

TEST(DecodeGifTest, WhatHasNoPictureSaysSo) {
  using std::string_view_literals::operator""sv;
  EXPECT_THAT(gif_error("GIF89a"sv), HasSubstr("truncated inside its header"));
  EXPECT_THAT(gif_error("GIF89a\1\0\1\0\0\0\0;"sv), HasSubstr("has no picture"));
  EXPECT_THAT(gif_error("GIF89a\1\0\1\0\0\0\0"sv), HasSubstr("truncated before its first picture"));
  EXPECT_THAT(gif_error("GIF89a\1\0\1\0\x80\0\0abc"sv), HasSubstr("truncated"));
  EXPECT_THAT(gif_error("GIF89a\1\0\1\0\0\0\0x"sv), HasSubstr("unknown kind"));
  EXPECT_THAT(gif_error("GIF89a\1\0\1\0\0\0\0!"sv), HasSubstr("truncated"));
  EXPECT_THAT(gif_error("GIF89a\1\0\1\0\0\0\0!\xfe\5abc"sv), HasSubstr("truncated"));
  EXPECT_THAT(gif_error("GIF89a\0\0\0\0\0\0\0,\0\0\0\0\0\0\0\0\0"sv), HasSubstr("a side of zero"));
  // A picture of nought by nought on a canvas; a code size that none can have.
  EXPECT_FALSE(decode_image(std::as_bytes(std::span(
                                "GIF89a\1\0\1\0\0\0\0,\0\0\0\0\0\0\0\0\0\2\2\x4c\1\0;"sv)))
                   .ok());
  for (const char code_size : {'\x0c', '\x7f', '\xff'}) {
    std::string file("GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2\x4c\1\0;"sv);
    file[23] = code_size;
    EXPECT_FALSE(decode_image(std::as_bytes(std::span(file))).ok()) << int{code_size};
  }
}

// 65,535 x 65,535 in thirty bytes.
TEST(DecodeGifTest, ABombIsRefusedByItsHeader) {
  using std::string_view_literals::operator""sv;
  EXPECT_THAT(gif_error("GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\1\0\1\0\0\2\2\x4c\1\0;"sv),
              HasSubstr("pixels, more than the 100000000 allowed"));
  EXPECT_THAT(gif_error("GIF89a\1\0\1\0\0\0\0,\xff\xff\0\0\xff\xff\1\0\0\2\2\x4c\1\0;"sv),
              HasSubstr("131070"));
}

// Comments by the thousand, and one that never ends.
TEST(DecodeGifTest, BlocksBeforeThePictureAreReadOver) {
  std::string file("GIF89a\2\0\1\0\0\0\0", 13);
  for (int i = 0; i < 100'000; ++i) file.append("!\xfe\3abc\0", 7);
  const std::string picture(",\0\0\0\0\2\0\1\0\0\2\2\x4c\x0a\0;", 16);
  const std::string whole = file + picture;
  const auto image = decode_image(std::as_bytes(std::span(whole)));
  EXPECT_NE(image.status().code(), StatusCode::kInternal) << image.status().to_string();
  EXPECT_THAT(gif_error(file), HasSubstr("truncated before its first picture"));
  std::string endless("GIF89a\2\0\1\0\0\0\0!\xfe", 15);
  for (int i = 0; i < 100'000; ++i) endless += std::string("\3abc");
  EXPECT_THAT(gif_error(endless), HasSubstr("truncated before its first picture"));
}

}  // namespace
}  // namespace gapless
