// What all formats share: recognition, bounds, orientation, and files broken at random.
#include "image/decode_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "image/exif.h"
#include "image/test_images.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

FileBytes bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string error_of(std::string_view text) {
  return decode_image(bytes_of(text)).status().message();
}

TEST(ProbeImageTest, TellsFormatSizeAndOrientation) {
  const Image picture = pattern_image(20, 12);
  const FileBytes jpeg = with_jpeg_exif(make_jpeg(20, 12, picture.rgb), exif_block(6));
  const FileBytes png = make_png(20, 12, picture.rgb, {.exif = exif_block(3)});
  const FileBytes webp = with_webp_exif(make_webp(20, 12, picture.rgb, 3), 20, 12, exif_block(8));
  const struct {
    const FileBytes& file;
    ImageFormat format;
    int orientation;
  } cases[] = {
      {jpeg, ImageFormat::kJpeg, 6}, {png, ImageFormat::kPng, 3}, {webp, ImageFormat::kWebp, 8}};
  for (const auto& c : cases) {
    SCOPED_TRACE(image_format_name(c.format));
    const auto info = probe_image(c.file);
    ASSERT_TRUE(info.ok()) << info.status().to_string();
    EXPECT_EQ(info->format, c.format);
    EXPECT_EQ(info->width, 20);
    EXPECT_EQ(info->height, 12);
    EXPECT_EQ(info->orientation, c.orientation);
  }
  // A probe tells the truth about pictures that decode_image refuses.
  EXPECT_EQ(probe_image(png_header_only(50'000, 40'000))->height, 40'000);
}

TEST(ProbeImageTest, NamesWhatItCannotRead) {
  EXPECT_THAT(error_of(""), HasSubstr("empty"));
  EXPECT_THAT(error_of("GIF89a......"), HasSubstr("a GIF image"));
  EXPECT_THAT(error_of("BM......"), HasSubstr("a BMP image"));
  EXPECT_THAT(error_of(std::string_view("II*\0\x08\0\0\0", 8)), HasSubstr("a TIFF image"));
  EXPECT_THAT(error_of(std::string_view("\0\0\0\x20"
                                        "ftypavif",
                                        12)),
              HasSubstr("an AVIF image"));
  EXPECT_THAT(error_of(std::string_view("\0\0\0\x20"
                                        "ftypheic",
                                        12)),
              HasSubstr("a HEIC image"));
  EXPECT_THAT(error_of("%PDF-1.7"), HasSubstr("a PDF document"));
  EXPECT_THAT(error_of("<svg xmlns="), HasSubstr("an SVG image"));
  EXPECT_THAT(error_of("data:image/png;base64,"), HasSubstr("a data URI"));
  EXPECT_THAT(error_of("/9j/4AAQSkZJRg"), HasSubstr("base64 text"));
  EXPECT_THAT(error_of("RIFF\x24\x08\x01 WAVEfmt"), HasSubstr("RIFF file other than WebP"));
  EXPECT_THAT(error_of("hello, world"), HasSubstr("68 65 6c 6c"));
}

TEST(DecodeImageTest, FilesOverTheByteLimitAreRefusedUnread) {
  FileBytes file = testdata_file("ycc420.jpg");
  file.resize(kMaxImageBytes + 1);
  EXPECT_THAT(decode_image(file).status().message(), HasSubstr("more than the 67108864 allowed"));
}

TEST(DecodeImageTest, OptionsMayLowerThePixelLimitButNotRaiseIt) {
  const FileBytes file = make_png(20, 12, pattern_image(20, 12).rgb);
  EXPECT_TRUE(decode_image(file, {.max_pixels = 240}).ok());
  EXPECT_THAT(decode_image(file, {.max_pixels = 239}).status().message(),
              HasSubstr("240 pixels, more than the 239 allowed"));
  EXPECT_THAT(decode_image(png_header_only(20'000, 20'000), {.max_pixels = 1'000'000'000})
                  .status()
                  .message(),
              HasSubstr("more than the 100000000 allowed"));
}

TEST(OrientationTest, EveryValueComesOutUprightInLosslessFiles) {
  const Image upright = pattern_image(70, 130);  // larger than one block of the turn, not square
  for (int orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(orientation);
    const Image stored = stored_for(upright, orientation);
    const FileBytes block = exif_block(orientation, orientation % 2 == 0);
    const FileBytes files[] = {make_png(stored.width, stored.height, stored.rgb, {.exif = block}),
                               make_png(stored.width, stored.height, stored.rgb,
                                        {.exif = block, .exif_after_pixels = true}),
                               with_webp_exif(make_webp(stored.width, stored.height, stored.rgb, 3),
                                              stored.width, stored.height, block)};
    for (const FileBytes& file : files) {
      const auto image = decode_image(file);
      ASSERT_TRUE(image.ok()) << image.status().to_string();
      EXPECT_EQ(image->width, upright.width);
      EXPECT_EQ(image->height, upright.height);
      EXPECT_EQ(image->rgb, upright.rgb);
      const auto ignored = decode_image(file, {.exif = ExifOrientation::kIgnore});
      ASSERT_TRUE(ignored.ok());
      EXPECT_EQ(ignored->rgb, stored.rgb);
    }
  }
}

TEST(OrientationTest, EveryValueTurnsAJpeg) {
  const FileBytes plain = make_jpeg(40, 24, pattern_image(40, 24).rgb);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(orientation);
    const FileBytes file = with_jpeg_exif(plain, exif_block(orientation));
    const auto upright = decode_image(file);
    const auto stored = decode_image(file, {.exif = ExifOrientation::kIgnore});
    ASSERT_TRUE(upright.ok() && stored.ok());
    EXPECT_EQ(upright->width, orientation >= 5 ? 24 : 40);
    EXPECT_EQ(stored_for(*upright, orientation).rgb, stored->rgb);
  }
}

TEST(OrientationTest, BrokenMetadataMeansUpright) {
  EXPECT_EQ(exif_orientation(exif_block(6, false, 4)), 6);
  EXPECT_EQ(exif_orientation(exif_block(6, true, 4)), 6);
  EXPECT_EQ(exif_orientation(exif_block(0)), 1);
  EXPECT_EQ(exif_orientation(exif_block(9)), 1);
  const FileBytes block = exif_block(6);
  for (std::size_t size = 0; size < 10 + 12 + 12; ++size) {
    // A copy of exactly that size, so that a read beyond it is seen by AddressSanitizer.
    const FileBytes cut(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(exif_orientation(cut), 1) << size;
  }
  FileBytes far_directory = block;
  std::memset(far_directory.data() + 4, 0xff, 4);
  EXPECT_EQ(exif_orientation(far_directory), 1);
}

std::vector<FileBytes> small_files() {
  const Image picture = pattern_image(24, 18);
  std::vector<std::uint8_t> rgba;
  for (std::size_t i = 0; i < picture.rgb.size(); i += 3) {
    rgba.insert(rgba.end(), {picture.rgb[i], picture.rgb[i + 1], picture.rgb[i + 2],
                             static_cast<std::uint8_t>(i)});
  }
  return {
      testdata_file("ycc420.jpg"),
      testdata_file("progressive.jpg"),
      testdata_file("cmyk.jpg"),
      testdata_file("palette.png"),
      with_jpeg_exif(make_jpeg(24, 18, picture.rgb), exif_block(6)),
      make_png(24, 18, picture.rgb, {.exif = exif_block(5)}),
      make_png(24, 18, rgba, {.colour_type = 6, .interlaced = true}),
      testdata_file("lossy.webp"),
      testdata_file("lossy_alpha.webp"),
      testdata_file("animated.webp"),
      with_webp_exif(make_webp(24, 18, picture.rgb, 3), 24, 18, exif_block(7)),
  };
}

TEST(BrokenFileTest, CutAnywhereIsAnError) {
  std::size_t index = 0;
  for (const FileBytes& file : small_files()) {
    ASSERT_TRUE(decode_image(file).ok()) << index;
    for (std::size_t size = 0; size < file.size(); ++size) {
      // A copy of exactly that size, so that a read beyond it is seen by AddressSanitizer.
      const FileBytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      const auto image = decode_image(cut);
      EXPECT_FALSE(image.ok()) << "file " << index << " cut to " << size << " bytes";
      EXPECT_FALSE(image.status().message().empty());
    }
    ++index;
  }
}

// Either outcome is fine; a crash, a hang or a picture of another size than its pixels is not.
TEST(BrokenFileTest, FlippedBitsNeverCrash) {
  std::mt19937 random(20251121);
  for (const FileBytes& file : small_files()) {
    for (int round = 0; round < 400; ++round) {
      FileBytes broken = file;
      const std::size_t num_flips = 1 + random() % 8;
      for (std::size_t i = 0; i < num_flips; ++i) {
        broken[random() % broken.size()] ^= static_cast<std::byte>(1u << (random() % 8));
      }
      const auto image = decode_image(broken, {.max_pixels = 1 << 20});
      if (!image.ok()) continue;
      EXPECT_EQ(image->rgb.size(), static_cast<std::size_t>(image->width) *
                                       static_cast<std::size_t>(image->height) * 3);
    }
  }
}

// Whoever reads rows as they are told reads what the picture has there in the end.
TEST(DecodeByRowsTest, RowsAreFinalWhenTheyAreTold) {
  const Image picture = pattern_image(50, 200);
  std::vector<std::uint8_t> rgba;
  for (std::size_t i = 0; i < picture.rgb.size(); i += 3) {
    rgba.insert(rgba.end(), {picture.rgb[i], picture.rgb[i + 1], picture.rgb[i + 2],
                             static_cast<std::uint8_t>(i)});
  }
  const FileBytes jpeg = make_jpeg(50, 200, picture.rgb);
  const struct {
    FileBytes file;
    bool in_parts;
  } cases[] = {{jpeg, true},
               {with_jpeg_exif(jpeg, exif_block(6)), false},  // turned as a whole
               {make_jpeg(50, 200, std::span(rgba), {.num_components = 4}), true},
               {make_png(50, 200, picture.rgb), true},
               {make_png(50, 200, picture.rgb, {.interlaced = true}), false},
               {make_png(50, 200, rgba, {.colour_type = 6}), false},
               {make_webp(50, 200, picture.rgb, 3), false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(&c - cases);
    const Image whole = decode_image(c.file).value();
    Image image;
    int num_told = 0;
    int num_calls = 0;
    const std::uint8_t* told_at = nullptr;
    const auto on_rows = [&](const std::uint8_t* rgb, int num_rows) {
      ++num_calls;
      if (told_at == nullptr) told_at = rgb;
      EXPECT_EQ(rgb, told_at);
      EXPECT_GE(num_rows, num_told);
      num_told = num_rows;
      const auto num_bytes =
          static_cast<std::ptrdiff_t>(whole.width) * static_cast<std::ptrdiff_t>(num_rows) * 3;
      EXPECT_TRUE(std::equal(rgb, rgb + num_bytes, whole.rgb.begin()));
    };
    ASSERT_TRUE(decode_image_by_rows(c.file, {}, on_rows, image).ok());
    EXPECT_EQ(num_told, whole.height);
    EXPECT_EQ(num_calls > 1, c.in_parts);
    EXPECT_EQ(image.rgb, whole.rgb);
    EXPECT_EQ(image.rgb.data(), told_at);
    const DecodedSize size = decoded_size(*probe_image(c.file), ExifOrientation::kApply);
    EXPECT_EQ(size.width, whole.width);
    EXPECT_EQ(size.height, whole.height);
  }
}

// Others may still be reading them when the decoder finds the file to be broken.
TEST(DecodeByRowsTest, ToldRowsOutliveAnError) {
  const Image picture = pattern_image(50, 200);
  for (const FileBytes& file : {make_jpeg(50, 200, picture.rgb), make_png(50, 200, picture.rgb)}) {
    const FileBytes half(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(file.size() / 2));
    Image image;
    std::vector<std::uint8_t> seen;
    const std::uint8_t* told_at = nullptr;
    const auto on_rows = [&](const std::uint8_t* rgb, int num_rows) {
      told_at = rgb;
      seen.assign(rgb, rgb + static_cast<std::ptrdiff_t>(50) * num_rows * 3);
    };
    EXPECT_FALSE(decode_image_by_rows(half, {}, on_rows, image).ok());
    ASSERT_NE(told_at, nullptr) << "half of it was there";
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), told_at));
  }
}

}  // namespace
}  // namespace gapless
