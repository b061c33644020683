#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "image/decode_image.h"
#include "image/pillow_goldens.h"
#include "image/test_images.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

const DecodeOptions kAsPillow{.exif = ExifOrientation::kIgnore};

TEST(DecodeGoldenTest, EveryTestFileEqualsPillow) {
  for (const DecodeGolden& golden : kDecodeGoldens) {
    SCOPED_TRACE(golden.file);
    const auto image = decode_image(testdata_file(golden.file), kAsPillow);
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    EXPECT_EQ(image->width, golden.width);
    EXPECT_EQ(image->height, golden.height);
    EXPECT_EQ(fnv1a(image->rgb), golden.fnv1a);
  }
}

// The segments of a JPEG from its second marker up to the first scan's, each with its marker.
std::vector<FileBytes> header_segments(const FileBytes& jpeg) {
  std::vector<FileBytes> segments;
  const auto byte = [&](std::size_t at) { return std::to_integer<std::size_t>(jpeg[at]); };
  for (std::size_t at = 2; byte(at + 1) != 0xDA;) {
    const std::size_t end = at + 2 + (byte(at + 2) << 8 | byte(at + 3));
    segments.emplace_back(jpeg.begin() + static_cast<std::ptrdiff_t>(at),
                          jpeg.begin() + static_cast<std::ptrdiff_t>(end));
    at = end;
  }
  return segments;
}

TEST(DecodeJpegTest, HuffmanTablesMayComeBeforeTheFrame) {
  const Image picture = pattern_image(40, 24);
  const FileBytes jpeg = make_jpeg(40, 24, picture.rgb);
  std::vector<FileBytes> segments = header_segments(jpeg);
  std::size_t header_bytes = 2;
  for (const FileBytes& segment : segments) header_bytes += segment.size();
  std::stable_partition(segments.begin(), segments.end(),
                        [](const FileBytes& segment) { return segment[1] == std::byte{0xC4}; });
  ASSERT_EQ(segments[0][1], std::byte{0xC4});
  FileBytes reordered(jpeg.begin(), jpeg.begin() + 2);
  for (const FileBytes& segment : segments) {
    reordered.insert(reordered.end(), segment.begin(), segment.end());
  }
  reordered.insert(reordered.end(), jpeg.begin() + static_cast<std::ptrdiff_t>(header_bytes),
                   jpeg.end());
  const auto image = decode_image(reordered);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_EQ(image->rgb, decode_image(jpeg)->rgb);
}

TEST(DecodeJpegTest, AFileCutInsideASegmentIsSaidToBe) {
  const Image picture = pattern_image(8, 8);
  FileBytes jpeg = make_jpeg(8, 8, picture.rgb);
  std::size_t at = 2;
  for (const FileBytes& segment : header_segments(jpeg)) {
    const FileBytes cut(jpeg.begin(), jpeg.begin() + static_cast<std::ptrdiff_t>(at + 5));
    EXPECT_THAT(decode_image(cut).status().message(), HasSubstr("truncated inside segment"));
    at += segment.size();
  }
}

TEST(DecodeJpegTest, GreyIsReplicated) {
  const std::vector<std::uint8_t> grey(16 * 16, 77);
  const auto image = decode_image(make_jpeg(16, 16, grey, {.num_components = 1}));
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_THAT(image->rgb, ::testing::SizeIs(16 * 16 * 3));
  EXPECT_THAT(image->rgb, ::testing::Each(77));
}

// Adobe's files hold 255 - ink, so a full K channel (0) is black and all 255 is white paper.
TEST(DecodeJpegTest, CmykAndYcckAreInvertedAsAdobeWritesThem) {
  struct Case {
    std::uint8_t stored[4];
    int rgb[3];
  };
  const Case cases[] = {{{255, 255, 255, 255}, {255, 255, 255}},
                        {{255, 255, 255, 0}, {0, 0, 0}},
                        {{0, 255, 255, 255}, {0, 255, 255}},
                        {{200, 100, 50, 128}, {100, 50, 25}}};
  for (const bool ycck : {false, true}) {
    for (const Case& c : cases) {
      std::vector<std::uint8_t> samples;
      for (int i = 0; i < 8 * 8; ++i) samples.insert(samples.end(), c.stored, c.stored + 4);
      const auto image = decode_image(
          make_jpeg(8, 8, samples, {.num_components = 4, .ycck = ycck, .quality = 100}));
      ASSERT_TRUE(image.ok()) << image.status().to_string();
      for (std::size_t channel = 0; channel < 3; ++channel) {
        EXPECT_NEAR(image->rgb[channel], c.rgb[channel], 2) << "YCCK " << ycck;
      }
    }
  }
}

TEST(DecodeJpegTest, ArithmeticCodingDecodesLikeHuffman) {
  const Image picture = pattern_image(40, 24);
  const auto plain = decode_image(make_jpeg(40, 24, picture.rgb));
  const auto arithmetic = decode_image(make_jpeg(40, 24, picture.rgb, {.arithmetic = true}));
  ASSERT_TRUE(plain.ok() && arithmetic.ok());
  EXPECT_EQ(plain->rgb, arithmetic->rgb);
}

TEST(DecodeJpegTest, ManyScansAreReadAndTooManyRefused) {
  const std::vector<std::uint8_t> grey(64 * 64, 130);
  const auto fine =
      decode_image(make_jpeg(64, 64, grey, {.num_components = 1, .num_refined_scans = 30}));
  ASSERT_TRUE(fine.ok()) << fine.status().to_string();
  EXPECT_THAT(fine->rgb, ::testing::Each(130));

  const auto bomb =
      decode_image(make_jpeg(64, 64, grey, {.num_components = 1, .num_refined_scans = 60}));
  ASSERT_FALSE(bomb.ok());
  EXPECT_THAT(bomb.status().message(), HasSubstr("more than 100 scans"));
}

TEST(DecodeJpegTest, OnePixelWideAndOnePixelHigh) {
  for (const auto& [width, height] : {std::pair{1, 300}, std::pair{300, 1}, std::pair{1, 1}}) {
    const Image picture = pattern_image(width, height);
    const auto image = decode_image(make_jpeg(width, height, picture.rgb));
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    EXPECT_EQ(image->width, width);
    EXPECT_EQ(image->height, height);
  }
}

TEST(DecodeJpegTest, BytesAfterTheEndDoNotMatter) {
  FileBytes file = testdata_file("ycc420.jpg");
  const auto before = decode_image(file);
  file.insert(file.end(), 1000, std::byte{0x55});
  const auto after = decode_image(file);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(before->rgb, after->rgb);
}

TEST(DecodeJpegTest, MissingEndMarkerIsTruncation) {
  FileBytes file = testdata_file("ycc420.jpg");
  file.resize(file.size() - 2);
  const auto image = decode_image(file);
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(image.status().message(), HasSubstr("truncated"));
}

// Offsets within the file's start of frame: 5 = height, 7 = width, 9 = components.
FileBytes with_frame_bytes(FileBytes file, std::size_t offset, std::vector<int> values) {
  for (std::size_t at = 0; at + 1 < file.size(); ++at) {
    if (file[at] != std::byte{0xff} || file[at + 1] != std::byte{0xc0}) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      file[at + offset + i] = static_cast<std::byte>(values[i]);
    }
    break;
  }
  return file;
}

TEST(DecodeJpegTest, ZeroSidesAreRefused) {
  const FileBytes file = testdata_file("ycc420.jpg");
  for (const std::size_t offset : {5u, 7u}) {
    const auto image = decode_image(with_frame_bytes(file, offset, {0, 0}));
    ASSERT_FALSE(image.ok());
    EXPECT_THAT(image.status().message(), HasSubstr("a side of zero pixels"));
  }
}

TEST(DecodeJpegTest, ALargeSizeOverFewBytesIsRefused) {
  const FileBytes file = testdata_file("ycc420.jpg");
  const auto too_large = decode_image(with_frame_bytes(file, 5, {0xff, 0xff, 0xff, 0xff}));
  ASSERT_FALSE(too_large.ok());
  EXPECT_THAT(too_large.status().message(), HasSubstr("65535x65535: 4294836225 pixels"));

  const auto truncated = decode_image(with_frame_bytes(file, 5, {0x20, 0, 0x20, 0}));
  ASSERT_FALSE(truncated.ok());
  EXPECT_THAT(truncated.status().message(), HasSubstr("truncated"));
}

TEST(DecodeJpegTest, TwelveBitsAreNamed) {
  const auto image = decode_image(with_frame_bytes(testdata_file("ycc420.jpg"), 4, {12}));
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.status().message(), HasSubstr("precision 12"));
}

// ---- several threads decode bands of one picture

constexpr int kBandedWidth = 500;
constexpr int kBandedHeight = 301;

// Decodes with every helper there is. kMeet: each thread waits at its first row until all of them have one, so that
// every band is somebody else's.
enum class Helpers { kMeet, kDoNotMeet };
StatusOr<Image> decode_with_all_helpers(const FileBytes& file, Helpers how,
                                        Image* rows_seen = nullptr) {
  DecodeHelpers helpers(4 * kMaxDecodeHelpers);
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> decoding;
  const auto is_met = [&] {
    return decoding.size() == static_cast<std::size_t>(kMaxDecodeHelpers + 1);
  };
  DecodeOptions options{.exif = ExifOrientation::kIgnore, .helpers = &helpers};
  options.stop = [&] {
    if (how == Helpers::kDoNotMeet) return false;
    std::unique_lock lock(mutex);
    if (decoding.insert(std::this_thread::get_id()).second) changed.notify_all();
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), is_met)) << "helpers stay away";
    return false;
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < helpers.count(); ++i) threads.emplace_back([&] { helpers.help(); });
  Image image;
  const auto on_rows = [&](const std::uint8_t* rgb, int num_rows) {
    if (rows_seen == nullptr) return;
    rows_seen->height = num_rows;
    rows_seen->rgb.assign(rgb, rgb + std::ptrdiff_t{kBandedWidth} * num_rows * 3);
  };
  GAPLESS_RETURN_IF_ERROR(decode_image_by_rows(file, options, on_rows, image));
  return image;
}

TEST(DecodeJpegBandsTest, TheSamePixelsAsByOneThread) {
  const Image picture = pattern_image(kBandedWidth, kBandedHeight);
  const JpegSpec specs[] = {{},
                            {.luma_columns = 1, .luma_rows = 1},
                            {.luma_columns = 2, .luma_rows = 1},
                            {.luma_columns = 1, .luma_rows = 2},
                            {.luma_columns = 4, .luma_rows = 2},
                            {.restart_rows = 1},
                            {.quality = 30, .arithmetic = true}};
  for (const JpegSpec& spec : specs) {
    SCOPED_TRACE(
        fmt::format("{}x{}, restart {}", spec.luma_columns, spec.luma_rows, spec.restart_rows));
    const FileBytes file = make_jpeg(kBandedWidth, kBandedHeight, picture.rgb, spec);
    const auto image = decode_with_all_helpers(file, Helpers::kMeet);
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    EXPECT_EQ(image->rgb, decode_image(file, kAsPillow)->rgb);
  }
}

TEST(DecodeJpegBandsTest, HelpersThatNeverComeAreNotWaitedFor) {
  const Image picture = pattern_image(kBandedWidth, kBandedHeight);
  const FileBytes file = make_jpeg(kBandedWidth, kBandedHeight, picture.rgb);
  DecodeHelpers helpers(4 * kMaxDecodeHelpers);
  DecodeOptions options = kAsPillow;
  options.helpers = &helpers;
  const auto image = decode_image(file, options);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_EQ(image->rgb, decode_image(file, kAsPillow)->rgb);
  helpers.help();  // returns: all is done
}

TEST(DecodeJpegBandsTest, HelpersOfOtherPicturesAreLetGo) {
  const Image small = pattern_image(40, 24);
  std::vector<std::uint8_t> cmyk(std::size_t{kBandedWidth} * kBandedHeight * 4, 90);
  for (const FileBytes& file :
       {make_jpeg(40, 24, small.rgb), make_png(40, 24, small.rgb), FileBytes(100),
        make_jpeg(kBandedWidth, kBandedHeight, cmyk, {.num_components = 4})}) {
    DecodeHelpers helpers(4);
    DecodeOptions options = kAsPillow;
    options.helpers = &helpers;
    std::jthread helper([&] { helpers.help(); });
    EXPECT_EQ(decode_image(file, options).ok(), decode_image(file, kAsPillow).ok());
  }
}

// What is told is right, and the error is the one that a single reader finds.
TEST(DecodeJpegBandsTest, AFileCutInAnyBandIsRefused) {
  const Image picture = pattern_image(kBandedWidth, kBandedHeight);
  const FileBytes file = make_jpeg(kBandedWidth, kBandedHeight, picture.rgb);
  const Image whole = decode_image(file, kAsPillow).value();
  for (const double share : {0.3, 0.5, 0.7, 0.9, 1.0}) {
    // Behind the last byte that counts, the end marker is missing.
    const auto size = static_cast<std::ptrdiff_t>(static_cast<double>(file.size() - 2) * share);
    const FileBytes cut(file.begin(), file.begin() + size);
    Image seen;
    const Status status = decode_with_all_helpers(cut, Helpers::kDoNotMeet, &seen).status();
    EXPECT_EQ(status.message(), decode_image(cut, kAsPillow).status().message());
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_LT(seen.height, kBandedHeight);
    EXPECT_TRUE(std::equal(seen.rgb.begin(), seen.rgb.end(), whole.rgb.begin())) << share;
  }
}

}  // namespace
}  // namespace gapless
