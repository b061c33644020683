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
  EXPECT_THAT(error_of("GIF88a......"), HasSubstr("47 49 46 38"));
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

// Its library is not to be stopped in the middle of a picture of one colour (limits.h).
TEST(DecodeImageTest, LosslessWebpHasAPixelLimitOfItsOwn) {
  const auto bounds_of = [](int height) {
    const FileBytes file = lossless_webp_header_only(8000, height);
    const StatusOr<ImageInfo> info = probe_image(file);
    EXPECT_TRUE(info.ok()) << info.status().to_string();
    return check_image_bounds(*info, {});
  };
  EXPECT_TRUE(bounds_of(5000).ok());
  EXPECT_THAT(bounds_of(5001).message(),
              HasSubstr("40008000 pixels, more than the 40000000 allowed of this kind"));
  EXPECT_THAT(bounds_of(16000).message(), HasSubstr("more than the 100000000 allowed"));
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

std::vector<std::uint8_t> grey_palette() {
  std::vector<std::uint8_t> rgb;
  for (int i = 0; i < 256; ++i) rgb.insert(rgb.end(), 3, static_cast<std::uint8_t>(255 - i));
  return rgb;
}

// A GIF up to the end of its first picture: what follows (the trailer, more pictures) is not read, so
// a file without it is whole.
FileBytes without_end(FileBytes gif) {
  gif.resize(gif.size() - 1);
  return gif;
}

std::vector<FileBytes> small_files() {
  const Image picture = pattern_image(24, 18);
  std::vector<std::uint8_t> rgba;
  for (std::size_t i = 0; i < picture.rgb.size(); i += 3) {
    rgba.insert(rgba.end(), {picture.rgb[i], picture.rgb[i + 1], picture.rgb[i + 2],
                             static_cast<std::uint8_t>(i)});
  }
  std::vector<std::uint8_t> indices;
  for (std::size_t i = 0; i < picture.rgb.size(); i += 3) indices.push_back(picture.rgb[i]);
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
      without_end(make_gif(24, 18, indices, {.palette = grey_palette(), .comment = true})),
      without_end(make_gif(24, 18, indices,
                           {.local_palette = grey_palette(),
                            .transparent = 3,
                            .interlaced = true,
                            .left = 3,
                            .top = 2,
                            .canvas_width = 40,
                            .canvas_height = 30})),
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

// The decoder would refuse them too: what counts is that the header's reader looks at no byte behind
// the file.
TEST(BrokenFileTest, AHeaderCutInsideASegmentSaysSo) {
  const FileBytes jpeg =
      with_jpeg_exif(make_jpeg(24, 18, pattern_image(24, 18).rgb), exif_block(6));
  int num_segments = 0;
  std::size_t at = 2;
  for (bool more = true; more; ++num_segments) {
    more = jpeg[at + 1] != std::byte{0xDA};  // the scan's header is the last
    const auto high = std::to_integer<std::size_t>(jpeg[at + 2]);
    const std::size_t end = at + 2 + high * 256 + std::to_integer<std::size_t>(jpeg[at + 3]);
    for (std::size_t size = at + 4; size < end; ++size) {
      const FileBytes cut(jpeg.begin(), jpeg.begin() + static_cast<std::ptrdiff_t>(size));
      const auto info = probe_image(cut);
      ASSERT_FALSE(info.ok()) << "cut to " << size << " bytes";
      EXPECT_THAT(info.status().message(), HasSubstr("truncated inside segment"))
          << "cut to " << size << " bytes";
    }
    at = end;
  }
  EXPECT_GT(num_segments, 5);
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
               {make_png(50, 200, rgba, {.colour_type = 6}), true},
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

// ---- giving up, and what decoding takes

// A flat picture: all of it is in a few bytes.
FileBytes flat_png(int width, int height, bool interlaced = false) {
  const std::vector<std::uint8_t> rows(static_cast<std::size_t>(width) *
                                       static_cast<std::size_t>(height) * 3);
  return make_png(width, height, rows, {.interlaced = interlaced});
}

// Whoever lets the older half go at each call has seen all of a large picture.
TEST(DecodeByRowsTest, OfALargePictureAFewRowsAreKept) {
  constexpr int kWidth = 2800, kHeight = 1000;
  const Image picture = pattern_image(kWidth, kHeight);
  const auto all = static_cast<std::size_t>(kWidth) * kHeight;
  std::vector<std::uint8_t> with_alpha;
  for (std::size_t i = 0; i < all; ++i) {
    const auto* const pixel = picture.rgb.data() + 3 * i;
    with_alpha.insert(with_alpha.end(), {pixel[0], pixel[1], pixel[2], 77});
  }
  const FileBytes jpeg = make_jpeg(kWidth, kHeight, picture.rgb);
  for (const FileBytes& file :
       {jpeg, make_jpeg(kWidth, kHeight, std::span(with_alpha), {.num_components = 4}),
        make_png(kWidth, kHeight, with_alpha, {.colour_type = 6})}) {
    const DecodeOptions options{.keeps_all_rows = false};
    ASSERT_EQ(rows_kept(*probe_image(file), options), kRowsKept);
    const Image whole = decode_image(file).value();
    Image image;
    int num_told = 0;
    const auto on_rows = [&](const std::uint8_t* rgb, int num_rows) {
      ASSERT_LE(num_rows - num_told, kRowsKept / 2) << "rows that nobody could see";
      for (int y = std::max(0, num_rows - kRowsKept / 2); y < num_rows; ++y) {
        const auto* const row = rgb + std::ptrdiff_t{y % kRowsKept} * kWidth * 3;
        ASSERT_TRUE(
            std::equal(row, row + kWidth * 3, whole.rgb.begin() + std::ptrdiff_t{y} * kWidth * 3))
            << "row " << y << " of " << num_rows;
      }
      num_told = num_rows;
    };
    ASSERT_TRUE(decode_image_by_rows(file, options, on_rows, image).ok());
    EXPECT_EQ(num_told, kHeight);
    EXPECT_EQ(image.rgb.size(), std::size_t{kRowsKept} * kWidth * 3);
    EXPECT_LE(decode_memory(*probe_image(file), options).peak_bytes,
              (kRowsKept + 64) * kWidth * 3 + (1 << 20));
  }

  // All of them where somebody wants them, where the picture is small, and where it has to be whole before it is right.
  const auto keeps_all = [](const FileBytes& file, const DecodeOptions& options) {
    return rows_kept(*probe_image(file), options) == 0;
  };
  EXPECT_TRUE(keeps_all(jpeg, {}));
  EXPECT_TRUE(keeps_all(make_jpeg(50, 200, pattern_image(50, 200).rgb), {.keeps_all_rows = false}));
  EXPECT_FALSE(probe_image(flat_png(9, 9, true))->comes_by_rows);
  const FileBytes turned = with_jpeg_exif(jpeg, exif_block(3));
  EXPECT_TRUE(keeps_all(turned, {.keeps_all_rows = false}));
  EXPECT_FALSE(keeps_all(turned, {.exif = ExifOrientation::kIgnore, .keeps_all_rows = false}));
  DecodeHelpers helpers(4 * kMaxDecodeHelpers);
  EXPECT_TRUE(keeps_all(jpeg, {.helpers = &helpers, .keeps_all_rows = false})) << "bands";
}
FileBytes noisy_webp(int width, int height) {
  std::vector<std::uint8_t> samples(static_cast<std::size_t>(width) *
                                    static_cast<std::size_t>(height) * 3);
  std::uint32_t state = 1;
  for (std::uint8_t& sample : samples) {
    state = state * 1664525u + 1013904223u;
    sample = static_cast<std::uint8_t>(state >> 24);
  }
  return make_webp(width, height, samples, 3);
}
FileBytes grey_jpeg(int width, int height, int num_refined_scans) {
  const std::vector<std::uint8_t> samples(
      static_cast<std::size_t>(width) * static_cast<std::size_t>(height), 90);
  return make_jpeg(width, height, samples,
                   {.num_components = 1, .num_refined_scans = num_refined_scans});
}

// How often decoding asks whether to go on; it is told to stop at question `stop_at`.
struct Asked {
  int num_questions = 0;
  Status status;
};
Asked ask(const FileBytes& file, int stop_at) {
  Asked asked;
  DecodeOptions options;
  options.stop = [&asked, stop_at] { return ++asked.num_questions >= stop_at; };
  asked.status = decode_image(file, options).status();
  return asked;
}

// For every row, so that the rest of one row is all that is decoded after a cancel.
TEST(DecodeStopTest, EachRowAsksAndNothingIsDecodedAfterTheAnswer) {
  constexpr int kNever = 1 << 30;
  constexpr int kHeight = 400;
  FileBytes turned = with_jpeg_exif(grey_jpeg(40, kHeight, 0), exif_block(6));
  const std::vector<std::pair<std::string, FileBytes>> files = {
      {"png", flat_png(30, kHeight)},
      {"interlaced png", flat_png(30, kHeight, true)},
      {"jpeg", grey_jpeg(30, kHeight, 0)},
      {"progressive jpeg", grey_jpeg(30, kHeight, 3)},
      {"turned jpeg", turned}};
  for (const auto& [name, file] : files) {
    const Asked whole = ask(file, kNever);
    ASSERT_TRUE(whole.status.ok()) << name << ": " << whole.status.to_string();
    EXPECT_GE(whole.num_questions, kHeight) << name;
    for (int stop_at = 1; stop_at <= whole.num_questions; stop_at += 7) {
      const Asked stopped = ask(file, stop_at);
      EXPECT_EQ(stopped.status.code(), StatusCode::kCancelled) << name << " at " << stop_at;
      EXPECT_EQ(stopped.num_questions, stop_at) << name << ": decoded on";
    }
  }
}

// Scans are collected before the first row comes out; each of their rows of blocks asks.
TEST(DecodeStopTest, TheScansOfAProgressiveJpegAsk) {
  const int in_one_scan = ask(grey_jpeg(30, 400, 0), 1 << 30).num_questions;
  EXPECT_GE(ask(grey_jpeg(30, 400, 20), 1 << 30).num_questions, in_one_scan + 20 * 400 / 8);
}

// The library is handed pieces of about 32 rows.
TEST(DecodeStopTest, WebpAsksForEveryPiece) {
  const FileBytes file = noisy_webp(300, 4000);
  const Asked whole = ask(file, 1 << 30);
  ASSERT_TRUE(whole.status.ok()) << whole.status.to_string();
  EXPECT_GE(whole.num_questions, 4000 / 32 / 2);
  EXPECT_LE(whole.num_questions, 4000 / 4) << "pieces of no rows are decoded again and again";
  for (const int stop_at : {1, 2, whole.num_questions / 2, whole.num_questions}) {
    const Asked stopped = ask(file, stop_at);
    EXPECT_EQ(stopped.status.code(), StatusCode::kCancelled) << stop_at;
    EXPECT_EQ(stopped.num_questions, stop_at);
  }
}

// A picture of one colour is a few bytes for thousands of rows, which libwebp makes in one call.
TEST(DecodeStopTest, LossyWebpOfOneColourAsksForEach16Rows) {
  constexpr int kWidth = 600, kHeight = 3000;
  const std::vector<std::uint8_t> rgb(std::size_t{kWidth} * kHeight * 3, 90);
  const FileBytes file = make_lossy_webp(kWidth, kHeight, rgb, 50);
  const Asked whole = ask(file, 1 << 30);
  ASSERT_TRUE(whole.status.ok()) << whole.status.to_string();
  EXPECT_GE(whole.num_questions, kHeight / 16);
  for (int stop_at = 1; stop_at <= whole.num_questions; stop_at += 29) {
    const Asked stopped = ask(file, stop_at);
    EXPECT_EQ(stopped.status.code(), StatusCode::kCancelled) << stop_at;
    EXPECT_EQ(stopped.num_questions, stop_at) << "decoded on";
  }
  EXPECT_EQ(ask(file, whole.num_questions).status.code(), StatusCode::kCancelled) << "the last one";
}

DecodeMemory memory_of(const FileBytes& file, DecodeOptions options = {}) {
  return decode_memory(probe_image(file).value(), options);
}

// Rasters and whole-picture buffers of the codecs; rows and tables are the small rest.
TEST(DecodeMemoryTest, CountsRasterCodecAndTurning) {
  constexpr std::int64_t kSmall = (1 << 20) + 64 * 800 * 4;
  constexpr int kWidth = 800, kHeight = 1600;
  constexpr std::int64_t kPixels = std::int64_t{kWidth} * kHeight;
  const auto expect_bytes = [](const DecodeMemory& memory, std::int64_t image, std::int64_t peak) {
    EXPECT_EQ(memory.image_bytes, image);
    EXPECT_GE(memory.peak_bytes, peak);
    EXPECT_LE(memory.peak_bytes, peak + kSmall);
  };
  DecodeHelpers helpers(4 * kMaxDecodeHelpers);
  const FileBytes jpeg = make_jpeg(kWidth, kHeight, std::vector<std::uint8_t>(kPixels * 3, 7));
  const std::int64_t alone = memory_of(jpeg).peak_bytes;
  const std::int64_t helped = memory_of(jpeg, {.helpers = &helpers}).peak_bytes;
  EXPECT_EQ(helped - alone, std::int64_t{kMaxDecodeHelpers} * 64 * kWidth * 3)
      << "rows of each reader";
  expect_bytes(memory_of(flat_png(kWidth, kHeight)), 3 * kPixels, 3 * kPixels);
  const std::vector<std::uint8_t> rgba(kPixels * 4, 7);
  expect_bytes(memory_of(make_png(kWidth, kHeight, rgba, {.colour_type = 6})), 3 * kPixels,
               3 * kPixels);
  expect_bytes(memory_of(make_webp(kWidth, kHeight, rgba, 4)), 4 * kPixels, (4 + 4) * kPixels);

  const FileBytes baseline = grey_jpeg(kWidth, kHeight, 0);
  expect_bytes(memory_of(baseline), 3 * kPixels, 3 * kPixels);
  expect_bytes(memory_of(grey_jpeg(kWidth, kHeight, 2)), 3 * kPixels, (3 + 2) * kPixels);
  const FileBytes turned = with_jpeg_exif(baseline, exif_block(6));
  expect_bytes(memory_of(turned), 3 * kPixels, (3 + 3) * kPixels);
  expect_bytes(memory_of(turned, {.exif = ExifOrientation::kIgnore}), 3 * kPixels, 3 * kPixels);

  expect_bytes(memory_of(noisy_webp(kWidth, kHeight)), 3 * kPixels, (3 + 4) * kPixels);
}

// 4:2:0: one block of each chroma for four of luma.
TEST(DecodeMemoryTest, ProgressiveColourHoldsCoefficientsOfAllComponents) {
  const ImageInfo info = probe_image(testdata_file("progressive.jpg")).value();
  const std::int64_t num_pixels = std::int64_t{info.width} * info.height;
  EXPECT_GE(info.codec_bytes, num_pixels * 2 * 3 / 2);
  EXPECT_LE(info.codec_bytes, (num_pixels + 32 * (info.width + info.height)) * 2 * 3);
}

}  // namespace
}  // namespace gapless
