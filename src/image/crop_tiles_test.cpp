#include "image/crop_tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/limits.h"
#include "image/pillow_goldens.h"
#include "image/test_images.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

constexpr CropGeometry kMoondream{};

TEST(SelectTilingTest, WorkedExamplesOfTheReference) {
  const struct {
    int width, height;
    Tiling tiling;
  } cases[] = {
      {378, 378, {1, 1}},   {800, 600, {2, 4}},    {1024, 768, {3, 4}},  {1920, 1080, {2, 4}},
      {300, 2000, {1, 1}},  {4000, 3000, {2, 4}},  {600, 800, {4, 2}},   {768, 1024, {4, 3}},
      {1080, 1920, {4, 2}}, {2000, 300, {1, 1}},   {3000, 4000, {4, 2}}, {640, 480, {2, 4}},
      {1280, 720, {2, 4}},  {3840, 2160, {2, 4}},  {1000, 1000, {3, 3}}, {379, 379, {3, 3}},
      {1, 1, {1, 1}},       {1, 65535, {1, 1}},    {112, 112, {1, 1}},   {7561, 644, {1, 13}},
      {8000, 600, {1, 13}}, {17682, 379, {1, 20}}, {600, 8000, {13, 1}}, {7560, 644, {1, 12}},
  };
  for (const auto& c : cases) {
    const auto tiling = select_tiling(c.width, c.height, kMoondream);
    ASSERT_TRUE(tiling.ok()) << tiling.status().to_string();
    EXPECT_EQ(*tiling, c.tiling) << c.width << "x" << c.height << " gave " << tiling->rows << ", "
                                 << tiling->cols;
  }
}

TEST(SelectTilingTest, OnlyTheKnownShapesOccur) {
  for (int width = 1; width < 4000; width += 37) {
    for (int height = 1; height < 4000; height += 41) {
      const Tiling t = *select_tiling(width, height, kMoondream);
      const int small = std::min(t.rows, t.cols);
      const int large = std::max(t.rows, t.cols);
      const bool known = (small == 1 && (large == 1 || (large >= 6 && large <= 12))) ||
                         (small == 2 && large >= 4 && large <= 6) ||
                         (small == 3 && (large == 3 || large == 4));
      EXPECT_TRUE(known) << width << "x" << height << ": " << t.rows << ", " << t.cols;
    }
  }
}

TEST(SelectTilingTest, MoreTilesThanTheLimitIsAnError) {
  // Moondream's own geometry cannot get there: the longest side we accept gives (1, 38).
  EXPECT_EQ(*select_tiling(65535, 379, kMoondream), (Tiling{1, 38}));
  const CropGeometry small{.crop_size = 28, .patch_size = 7, .overlap_margin = 1, .max_crops = 256};
  const auto tiling = select_tiling(65535, 32, small);
  ASSERT_FALSE(tiling.ok());
  EXPECT_THAT(tiling.status().message(), HasSubstr("image of 65535x32 needs 774x1 crops"));
  // 8 x 8 is the most that passes; 13 x 5 and what is larger does not.
  CropGeometry a_few_more = small;
  a_few_more.max_crops = kMaxTilesPerImage + 10;
  int most_tiles = 0;
  int num_refused = 0;
  for (int width = 30; width < 400; ++width) {
    const auto square = select_tiling(width, 100, a_few_more);
    if (square.ok()) most_tiles = std::max(most_tiles, square->rows * square->cols);
    num_refused += square.ok() ? 0 : 1;
  }
  EXPECT_EQ(most_tiles, kMaxTilesPerImage);
  EXPECT_GT(num_refused, 0);
}

TEST(CropGeometryTest, DefaultsAreMoondreams) {
  EXPECT_TRUE(kMoondream.validate().ok());
  EXPECT_EQ(kMoondream.window_pixels(), 266);
  EXPECT_EQ(kMoondream.canvas_pixels(4), 1176);
  EXPECT_EQ(kMoondream.stitched_patches(2), 46);
  EXPECT_EQ(num_crops({1, 1}), 1);
  EXPECT_EQ(num_crops({2, 4}), 9);
}

TEST(CropGeometryTest, UnusableConfigurationsAreNamed) {
  EXPECT_THAT((CropGeometry{.crop_size = 380}.validate().message()), HasSubstr("crop_size 380"));
  EXPECT_FALSE((CropGeometry{.patch_size = 0}.validate().ok()));
  EXPECT_FALSE((CropGeometry{.crop_size = 14 * 1000}.validate().ok()));
  EXPECT_THAT((CropGeometry{.overlap_margin = 14}.validate().message()),
              HasSubstr("overlap_margin 14"));
  EXPECT_FALSE((CropGeometry{.overlap_margin = 1 << 30}.validate().ok()));
  EXPECT_FALSE((CropGeometry{.overlap_margin = -1}.validate().ok()));
  EXPECT_FALSE((CropGeometry{.max_crops = 0}.validate().ok()));
  EXPECT_FALSE((CropGeometry{.max_crops = kMaxTilesPerImage + 1}.validate().ok()));
}

TEST(MakeCropsTest, EqualsPillowsCrops) {
  for (const CropsGolden& golden : kCropsGoldens) {
    SCOPED_TRACE(fmt::format("{}x{}", golden.width, golden.height));
    const auto crops = make_crops(pattern_image(golden.width, golden.height), kMoondream);
    ASSERT_TRUE(crops.ok()) << crops.status().to_string();
    EXPECT_EQ(crops->tiling, (Tiling{golden.rows, golden.cols}));
    EXPECT_EQ(crops->pixels.size(),
              static_cast<std::size_t>(crops->num_crops) * kMoondream.crop_bytes());
    EXPECT_EQ(fnv1a(crops->pixels), golden.fnv1a);
  }
}

TEST(MakeCropsTest, SharedWorkGivesTheSamePixels) {
  ThreadPool pool(4);
  for (const CropsGolden& golden : kCropsGoldens) {
    SCOPED_TRACE(fmt::format("{}x{}", golden.width, golden.height));
    const Image image = pattern_image(golden.width, golden.height);
    const Tiling tiling{golden.rows, golden.cols};
    const auto count = static_cast<std::size_t>(num_crops(tiling));
    std::vector<std::uint8_t> pixels(count * kMoondream.crop_bytes());
    std::vector<std::uint8_t*> crops;
    for (std::size_t i = 0; i < count; ++i) {
      crops.push_back(pixels.data() + i * kMoondream.crop_bytes());
    }
    PictureRows rows(image.rgb.data(), image.height);
    make_crops_into(rows, image.width, image.height, tiling, kMoondream, crops, &pool);
    EXPECT_EQ(fnv1a(pixels), golden.fnv1a);
  }
}

// While a decoder publishes the rows, slowly, a few at a time, or all at once.
TEST(MakeCropsTest, CutsWhileTheRowsCome) {
  ThreadPool pool(4);
  for (const CropsGolden& golden : kCropsGoldens) {
    if (golden.width * golden.height > 1'000'000) continue;  // takes long, shows nothing new
    SCOPED_TRACE(fmt::format("{}x{}", golden.width, golden.height));
    const Image image = pattern_image(golden.width, golden.height);
    const Tiling tiling{golden.rows, golden.cols};
    const auto count = static_cast<std::size_t>(num_crops(tiling));
    for (const int strip : {7, 1 << 20}) {
      for (ThreadPool* const used : {&pool, static_cast<ThreadPool*>(nullptr)}) {
        std::vector<std::uint8_t> pixels(count * kMoondream.crop_bytes());
        std::vector<std::uint8_t*> crops;
        for (std::size_t i = 0; i < count; ++i) {
          crops.push_back(pixels.data() + i * kMoondream.crop_bytes());
        }
        // Rows that did not come yet have other pixels.
        std::vector<std::uint8_t> raster(image.rgb.size(), 0xEE);
        const std::size_t row_bytes = static_cast<std::size_t>(image.width) * 3;
        PictureRows rows;
        make_crops_into(rows, image.width, image.height, tiling, kMoondream, crops, used, [&] {
          for (int y = 0; y < image.height; y += strip) {
            const int end = std::min(image.height, y + strip);
            std::copy(image.rgb.begin() + static_cast<std::ptrdiff_t>(row_bytes) * y,
                      image.rgb.begin() + static_cast<std::ptrdiff_t>(row_bytes) * end,
                      raster.begin() + static_cast<std::ptrdiff_t>(row_bytes) * y);
            rows.publish(raster.data(), end);
            std::this_thread::yield();
          }
        });
        ASSERT_EQ(fnv1a(pixels), golden.fnv1a) << "rows by " << strip;
      }
    }
  }
}

// A decoder that has room for a few rows, and whoever let go of a row does not find it again.
class PassingRows {
 public:
  explicit PassingRows(const Image& image)
      : image_(image), row_bytes_(static_cast<std::ptrdiff_t>(image.width) * 3) {
    raster_.resize(static_cast<std::size_t>(row_bytes_) * kKept, kGone);
  }
  PictureRows& rows() { return rows_; }
  // Publishes the first num_rows of them.
  void decode(int num_rows) {
    constexpr int kStrip = 32;
    for (int y = 0; y < num_rows; ++y) {
      const auto row = image_.rgb.begin() + row_bytes_ * y;
      std::copy(row, row + row_bytes_, row_at(y));
      if ((y + 1) % kStrip != 0 && y + 1 != num_rows) continue;
      rows_.publish(raster_.data(), y + 1);
      for (int gone = std::max(0, y + 1 - kKept); gone < y + 1 - kKept / 2; ++gone) {
        std::fill(row_at(gone), row_at(gone) + row_bytes_, kGone);
      }
    }
  }

 private:
  static constexpr int kKept = 128;
  static constexpr std::uint8_t kGone = 0xEE;
  std::vector<std::uint8_t>::iterator row_at(int y) {
    return raster_.begin() + row_bytes_ * (y % kKept);
  }
  const Image& image_;
  const std::ptrdiff_t row_bytes_;
  std::vector<std::uint8_t> raster_;
  PictureRows rows_{kKept};
};

TEST(MakeCropsTest, CutsRowsThatDoNotStay) {
  ThreadPool pool(4);
  for (const auto& [width, height] : {std::pair{1600, 1100}, std::pair{700, 389}}) {
    const Image image = pattern_image(width, height);
    const CropSet wanted = make_crops(image, kMoondream).value();
    ASSERT_TRUE(crops_read_rows_once(width, height, wanted.tiling, kMoondream));
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<std::uint8_t> pixels(wanted.pixels.size());
      std::vector<std::uint8_t*> crops;
      for (std::size_t at = 0; at < pixels.size(); at += kMoondream.crop_bytes()) {
        crops.push_back(pixels.data() + at);
      }
      PassingRows passing(image);
      ThreadPool* const used = repeat % 2 == 0 ? &pool : nullptr;
      EXPECT_TRUE(make_crops_into(passing.rows(), width, height, wanted.tiling, kMoondream, crops,
                                  used, [&] { passing.decode(height); }));
      ASSERT_EQ(pixels, wanted.pixels);
      // Broken off by the decoder, and by whoever does not want the crops any more.
      PassingRows half(image);
      EXPECT_TRUE(
          make_crops_into(half.rows(), width, height, wanted.tiling, kMoondream, crops, used, [&] {
            half.decode(height / 2);
            half.rows().give_up();
          }));
      PassingRows unwanted(image);
      std::atomic<int> asked{0};
      EXPECT_FALSE(make_crops_into(
          unwanted.rows(), width, height, wanted.tiling, kMoondream, crops, used,
          [&] { unwanted.decode(height); }, [&] { return ++asked >= 4 * repeat; }));
    }
  }
  // One pass alone, or the vertical one first, goes back to rows that were read before.
  EXPECT_FALSE(crops_read_rows_once(378, 1200, {1, 1}, kMoondream));
  EXPECT_FALSE(crops_read_rows_once(1200, 378, {1, 1}, kMoondream));
  EXPECT_FALSE(crops_read_rows_once(400, 4000, {1, 1}, kMoondream));
  EXPECT_FALSE(crops_read_rows_once(kMoondream.canvas_pixels(4), 3000, {2, 4}, kMoondream));
}

TEST(MakeCropsTest, ADecoderThatGivesUpEndsTheCutting) {
  ThreadPool pool(4);
  const Image image = pattern_image(800, 600);
  const Tiling tiling = *select_tiling(800, 600, kMoondream);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(num_crops(tiling)) *
                                   kMoondream.crop_bytes());
  std::vector<std::uint8_t*> crops;
  for (int i = 0; i < num_crops(tiling); ++i) {
    crops.push_back(pixels.data() + static_cast<std::size_t>(i) * kMoondream.crop_bytes());
  }
  for (const int rows_that_come : {0, 1, 300, 599}) {
    PictureRows rows;
    make_crops_into(rows, 800, 600, tiling, kMoondream, crops, &pool, [&] {
      if (rows_that_come > 0) rows.publish(image.rgb.data(), rows_that_come);
      rows.give_up();
    });
    EXPECT_EQ(rows.wait_for(1), nullptr);
  }
}

TEST(MakeCropsTest, AVeryWidePictureMakesFourteenCrops) {
  Image image{8000, 600, Pixels(8000 * 600 * 3, 42)};
  const auto crops = make_crops(image, kMoondream);
  ASSERT_TRUE(crops.ok()) << crops.status().to_string();
  EXPECT_EQ(crops->num_crops, 14);
  EXPECT_THAT(crops->pixels, ::testing::Each(42));
}

TEST(MakeCropsTest, OtherGeometriesWork) {
  const CropGeometry small{.crop_size = 28, .patch_size = 7, .overlap_margin = 1, .max_crops = 4};
  ASSERT_TRUE(small.validate().ok());
  const auto crops = make_crops(pattern_image(60, 60), small);
  ASSERT_TRUE(crops.ok());
  EXPECT_EQ(crops->tiling, (Tiling{2, 2}));
  // Neighbours share a margin on each side: the last 14 columns of one are the first of the next.
  const std::uint8_t* left = crops->pixels.data() + small.crop_bytes();
  const std::uint8_t* right = left + small.crop_bytes();
  for (int y = 0; y < 28; ++y) {
    EXPECT_TRUE(std::equal(right + y * 84, right + y * 84 + 42, left + y * 84 + 42));
  }
}

// The copying form of the reference: each tile, less its inner margins, written to its place.
TEST(StitchSourceTest, EqualsTheReferencesCopiesAndCoversEveryCellOnce) {
  for (int rows = 1; rows <= 13; ++rows) {
    for (const int cols : {1, 2, 4, 13}) {
      const Tiling tiling{rows, cols};
      const int width = kMoondream.stitched_patches(cols);
      const int height = kMoondream.stitched_patches(rows);
      std::vector<int> times_written(static_cast<std::size_t>(width * height), 0);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < cols; ++c) {
          const int y0 = r == 0 ? 0 : 4;
          const int y1 = r == rows - 1 ? 27 : 23;
          const int x0 = c == 0 ? 0 : 4;
          const int x1 = c == cols - 1 ? 27 : 23;
          for (int y = y0; y < y1; ++y) {
            for (int x = x0; x < x1; ++x) {
              const int crop = rows * cols == 1 ? 0 : 1 + r * cols + c;
              const int grid_row = 19 * r + y;
              const int grid_col = 19 * c + x;
              ++times_written.at(static_cast<std::size_t>(grid_row * width + grid_col));
              ASSERT_EQ(stitch_source(grid_row, grid_col, tiling, kMoondream),
                        (StitchSource{crop, y, x}))
                  << rows << "x" << cols << " at " << grid_row << ", " << grid_col;
            }
          }
        }
      }
      EXPECT_THAT(times_written, ::testing::Each(1)) << rows << "x" << cols;
    }
  }
}

TEST(PoolWindowTest, WindowsOfTheReference) {
  using W = PoolWindow;
  for (int i = 0; i < 27; ++i) EXPECT_EQ(pool_window(i, 27, 27), (W{i, i + 1}));
  const std::pair<int, std::vector<W>> tables[] = {
      {46, {{0, 2}, {1, 4}, {3, 6}, {5, 7}, {6, 9}, {8, 11}, {10, 12}, {11, 14}}},
      {65, {{0, 3}, {2, 5}, {4, 8}, {7, 10}, {9, 13}, {12, 15}, {14, 17}, {16, 20}}},
      {84, {{0, 4}, {3, 7}, {6, 10}, {9, 13}, {12, 16}, {15, 19}, {18, 22}, {21, 25}}},
  };
  for (const auto& [in, windows] : tables) {
    for (std::size_t i = 0; i < windows.size(); ++i) {
      EXPECT_EQ(pool_window(static_cast<int>(i), in, 27), windows[i]) << in << " at " << i;
    }
    EXPECT_EQ(pool_window(26, in, 27).end, in);
  }
  EXPECT_EQ(pool_window(26, 46, 27), (W{44, 46}));
  EXPECT_EQ(pool_window(26, 65, 27), (W{62, 65}));
  EXPECT_EQ(pool_window(26, 84, 27), (W{80, 84}));
}

// A task is some 16 or 32 rows.
TEST(MakeCropsTest, AsksBeforeEveryTaskAndDoesNothingAfterTheAnswer) {
  const Image image = pattern_image(900, 1600);
  const Tiling tiling = *select_tiling(image.width, image.height, kMoondream);
  std::vector<std::vector<std::uint8_t>> crops(static_cast<std::size_t>(num_crops(tiling)),
                                               std::vector<std::uint8_t>(kMoondream.crop_bytes()));
  std::vector<std::uint8_t*> to;
  for (auto& crop : crops) to.push_back(crop.data());
  const auto cut = [&](ThreadPool* pool, const StopCheck& stop) {
    PictureRows rows(image.rgb.data(), image.height);
    return make_crops_into(rows, image.width, image.height, tiling, kMoondream, to, pool, nullptr,
                           stop);
  };
  int num_questions = 0;
  EXPECT_TRUE(cut(nullptr, [&] {
    ++num_questions;
    return false;
  }));
  EXPECT_GE(num_questions, 2 * 1600 / 32) << "of both resizes";
  for (int stop_at = 1; stop_at <= num_questions; stop_at += 5) {
    int asked = 0;
    EXPECT_FALSE(cut(nullptr, [&] { return ++asked >= stop_at; }));
    EXPECT_EQ(asked, stop_at);
  }
  // Of several threads none waits for what is skipped.
  ThreadPool pool(4);
  for (int stop_at = 1; stop_at <= num_questions; stop_at += 11) {
    std::atomic<int> asked{0};
    EXPECT_FALSE(cut(&pool, [&] { return ++asked >= stop_at; }));
    EXPECT_LE(asked.load(), stop_at + 3);
  }
}

// Between the two passes of a resize: rows of the width that is made first, or columns of the height.
TEST(MakeCropsTest, MemoryIsThatBetweenThePasses) {
  const Tiling tiling{2, 4};
  const std::int64_t canvas = kMoondream.canvas_pixels(4);
  EXPECT_EQ(crop_memory_bytes(4000, 3000, tiling, kMoondream), 3 * 3000 * (378 + canvas));
  EXPECT_EQ(crop_memory_bytes(300, 2000, {1, 1}, kMoondream), 3 * 300 * 378) << "vertical first";
  EXPECT_EQ(crop_memory_bytes(378, 378, {1, 1}, kMoondream), 0) << "nothing to resize";
}

}  // namespace
}  // namespace gapless
