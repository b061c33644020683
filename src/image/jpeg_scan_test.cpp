#include "image/jpeg_scan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "image/decode_image.h"
#include "image/test_images.h"

namespace gapless {
namespace {

using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

constexpr int kWidth = 500, kHeight = 301;

// Edges, a gradient and noise, so that blocks differ in length. Half of it is of one colour.
Image photograph(int width, int height, std::uint32_t seed) {
  std::mt19937 random(seed);
  Image image{width, height, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const bool is_flat = x > width / 3 && y > height / 3 && y < 2 * height / 3;
      const int grain = is_flat ? 0 : static_cast<int>(random() % 33) - 16;
      for (const int value : {x * 255 / width, y * 255 / height, (x / 40 + y / 25) % 2 * 200}) {
        image.rgb.push_back(
            static_cast<std::uint8_t>(is_flat ? 90 : std::clamp(value + grain, 0, 255)));
      }
    }
  }
  return image;
}

enum class Read { kAll, kOddParts, kNone };

// Decodes the bands' files, one by one. Nothing: the file cannot be cut into bands.
std::optional<std::vector<std::uint8_t>> by_bands(const FileBytes& file, int max_parts,
                                                  int band_units, Read read = Read::kAll) {
  const auto scan = JpegScan::open(file, max_parts);
  if (scan == nullptr) return std::nullopt;
  for (int part = 0; part < scan->num_parts(); ++part) {
    if (read == Read::kAll || (read == Read::kOddParts && part % 2 == 1)) scan->read_part(part, {});
  }
  if (!scan->join({})) return std::nullopt;
  const ImageInfo info = probe_image(file).value();
  const int band_rows = band_units * scan->unit_rows();
  std::vector<std::uint8_t> pixels;
  for (int row = 0; row < info.height; row += band_rows) {
    const int end = std::min(info.height, row + band_rows);
    const JpegScan::BandFile band = scan->band_file(row, end);
    const auto image = decode_image(band.bytes, {.exif = ExifOrientation::kIgnore});
    if (!image.ok() || image->width != info.width || image->height != band.num_rows) {
      ADD_FAILURE() << "rows from " << row << ": " << image.status().to_string();
      return std::nullopt;
    }
    const auto row_bytes = std::ptrdiff_t{3} * info.width;
    const auto first = image->rgb.begin() + band.rows_above * row_bytes;
    pixels.insert(pixels.end(), first, first + (end - row) * row_bytes);
  }
  return pixels;
}

std::vector<std::uint8_t> as_a_whole(const FileBytes& file) {
  return decode_image(file, {.exif = ExifOrientation::kIgnore})->rgb;
}

TEST(JpegScanTest, BandsHaveTheWholePicturesPixels) {
  const JpegSpec specs[] = {{},
                            {.luma_columns = 1, .luma_rows = 1},
                            {.luma_columns = 2, .luma_rows = 1},
                            {.luma_columns = 1, .luma_rows = 2},
                            {.luma_columns = 4, .luma_rows = 2},
                            {.luma_columns = 4, .luma_rows = 1},
                            {.quality = 30},
                            {.quality = 100},
                            {.own_codes = true},
                            {.quality = 3, .own_codes = true},
                            // Nothing tells its blocks apart but their order.
                            {.stays_rgb = true}};
  const Image picture = photograph(kWidth, kHeight, 7);
  for (const JpegSpec& spec : specs) {
    SCOPED_TRACE(fmt::format("{}x{}, quality {}, own codes {}, RGB {}", spec.luma_columns,
                             spec.luma_rows, spec.quality, spec.own_codes, spec.stays_rgb));
    const FileBytes file = make_jpeg(kWidth, kHeight, picture.rgb, spec);
    const std::vector<std::uint8_t> whole = as_a_whole(file);
    for (const int max_parts : {1, 2, 7}) {
      for (const int band_units : {1, 2, 5, 100}) {
        EXPECT_EQ(by_bands(file, max_parts, band_units), whole) << max_parts << ", " << band_units;
      }
    }
  }
}

TEST(JpegScanTest, GreyPicturesToo) {
  std::vector<std::uint8_t> grey;
  const Image picture = photograph(kWidth, kHeight, 8);
  for (std::size_t i = 0; i < picture.rgb.size(); i += 3) grey.push_back(picture.rgb[i]);
  const FileBytes file = make_jpeg(kWidth, kHeight, grey, {.num_components = 1});
  EXPECT_EQ(by_bands(file, 7, 4), as_a_whole(file));
}

// Of sizes around those of an MCU.
TEST(JpegScanTest, SmallPictures) {
  for (const int width : {1, 15, 16, 17}) {
    for (const int height : {1, 16, 17, 33, 48}) {
      const FileBytes file = make_jpeg(width, height, photograph(width, height, 9).rgb);
      EXPECT_EQ(by_bands(file, 3, 1), as_a_whole(file)) << width << "x" << height;
    }
  }
}

// As when a guess never falls into step.
TEST(JpegScanTest, PartsThatNobodyReadAreReadWhenTheyAreJoined) {
  const FileBytes file = make_jpeg(kWidth, kHeight, photograph(kWidth, kHeight, 10).rgb);
  for (const Read read : {Read::kOddParts, Read::kNone}) {
    EXPECT_EQ(by_bands(file, 7, 3, read), as_a_whole(file));
  }
}

TEST(JpegScanTest, ReadsInAsManyPartsAsAreWorthIt) {
  const FileBytes file = make_jpeg(kWidth, kHeight, photograph(kWidth, kHeight, 11).rgb);
  EXPECT_EQ(JpegScan::open(file, 1)->num_parts(), 1);
  EXPECT_EQ(JpegScan::open(file, 7)->num_parts(), 7);
  EXPECT_EQ(JpegScan::open(make_jpeg(40, 24, pattern_image(40, 24).rgb), 7)->num_parts(), 1);
}

// A band begins with what its blocks' first coefficients are relative to, whichever words the codes have: here
// all blocks are of one of two colours, so there are few.
TEST(JpegScanTest, ABandBeginsAtAnyBrightness) {
  for (const int step : {1, 2, 3, 5, 9, 30, 200}) {
    std::vector<std::uint8_t> grey(std::size_t{240} * 400);
    for (std::size_t i = 0; i < grey.size(); ++i) {
      grey[i] = static_cast<std::uint8_t>(i / (240 * 8) % 3 == 2 ? 20 : 20 + step);
    }
    const FileBytes file =
        make_jpeg(240, 400, grey, {.num_components = 1, .quality = 90, .own_codes = true});
    EXPECT_EQ(by_bands(file, 1, 1), as_a_whole(file)) << step;
  }
}

// Where a row has fewer blocks than that takes words, the picture is not cut.
TEST(JpegScanTest, TooFewBlocksForABandsBegin) {
  std::vector<std::uint8_t> grey(std::size_t{8} * 400);
  for (std::size_t i = 0; i < grey.size(); ++i)
    grey[i] = static_cast<std::uint8_t>(i / 8 * 255 / 400);
  const JpegSpec spec{.num_components = 1, .quality = 100, .own_codes = true};
  EXPECT_EQ(by_bands(make_jpeg(8, 400, grey, spec), 1, 1), std::nullopt);
}

TEST(JpegScanTest, OtherKindsOfFilesAreLeftToOthers) {
  const Image picture = photograph(64, 48, 12);
  const std::vector<std::uint8_t> four(std::size_t{64} * 48 * 4, 90);
  const std::vector<std::uint8_t> grey(std::size_t{64} * 48, 90);
  for (const FileBytes& file :
       {make_jpeg(64, 48, picture.rgb, {.arithmetic = true}),
        make_jpeg(64, 48, picture.rgb, {.restart_rows = 1}),
        make_jpeg(64, 48, four, {.num_components = 4}),
        make_jpeg(64, 48, grey, {.num_components = 1, .num_refined_scans = 2}),
        make_png(64, 48, picture.rgb), FileBytes(100), FileBytes()}) {
    EXPECT_EQ(JpegScan::open(file, 4), nullptr);
  }
}

// Whatever is wrong with a file: it is not cut into bands, or into those of the picture that libjpeg makes of it.
TEST(JpegScanTest, DamagedFilesAreRefusedOrHaveTheSamePixels) {
  std::mt19937 random(13);
  const FileBytes sound = make_jpeg(160, 120, photograph(160, 120, 13).rgb);
  const auto whole_of = [](const FileBytes& file) {
    return decode_image(file, {.exif = ExifOrientation::kIgnore});
  };
  int num_refused = 0, num_the_same = 0;
  for (int i = 0; i < 2000; ++i) {
    FileBytes file = sound;
    for (auto k = random() % 3 + 1; k > 0; --k) {
      const std::size_t at = 2 + random() % (file.size() - 2);
      if (random() % 8 == 0) {
        file.erase(file.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        file[at] ^= std::byte{static_cast<unsigned char>(1u << random() % 8)};
      }
    }
    const auto scan = JpegScan::open(file, 3);
    if (scan != nullptr) {
      for (int part = 0; part < scan->num_parts(); ++part) scan->read_part(part, {});
    }
    if (scan == nullptr || !scan->join({})) {
      ++num_refused;
      continue;
    }
    const auto whole = whole_of(file);
    if (!whole.ok()) continue;  // for a reason that the first reader finds
    ASSERT_EQ(by_bands(file, 3, 2), whole->rgb) << i;
    ++num_the_same;
  }
  EXPECT_GT(num_refused, 100);
  EXPECT_GT(num_the_same, 20);
}

// Without its last bits, and with some too many.
TEST(JpegScanTest, EveryBitIsOneOfThePictures) {
  const FileBytes sound = make_jpeg(160, 120, photograph(160, 120, 14).rgb);
  ASSERT_TRUE(by_bands(sound, 2, 2).has_value());
  for (const int change : {-300, -3, -1, 1, 2, 50}) {
    FileBytes file = sound;
    const auto end = file.end() - 2;
    if (change < 0) {
      file.erase(end + change, end);
    } else {
      file.insert(end, static_cast<std::size_t>(change), std::byte{0x5a});
    }
    EXPECT_EQ(by_bands(file, 2, 2), std::nullopt) << change;
  }
  FileBytes without_end = sound;
  without_end.resize(sound.size() - 2);
  EXPECT_EQ(JpegScan::open(without_end, 2), nullptr);
}

TEST(JpegScanTest, StopsWhenItIsTold) {
  const FileBytes file = make_jpeg(kWidth, kHeight, photograph(kWidth, kHeight, 15).rgb);
  const auto scan = JpegScan::open(file, 2);
  int asked = 0;
  const StopCheck stop = [&] { return ++asked > 0; };
  scan->read_part(0, stop);
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(scan->join(stop));
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace gapless
