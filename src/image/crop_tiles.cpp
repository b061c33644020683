#include "image/crop_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/limits.h"
#include "image/resize_lanczos.h"

namespace gapless {
namespace {

int ceil_divide(int a, int b) {
  return (a + b - 1) / b;
}

// The operation order in doubles is the reference's; other orders can differ by one tile.
Tiling unbounded_tiling(int width, int height, const CropGeometry& geometry) {
  const int w = width - 2 * geometry.margin_pixels();
  const int h = height - 2 * geometry.margin_pixels();
  const int window = geometry.window_pixels();
  if (h <= window || w <= window) return {1, 1};

  const int least_rows = ceil_divide(h, window);
  const int least_cols = ceil_divide(w, window);
  const double most = geometry.max_crops;
  if (std::int64_t{least_rows} * least_cols > geometry.max_crops) {
    // Too large even at one pixel per pixel: shrink both axes by the same factor.
    const double ratio = std::sqrt(most / (static_cast<double>(least_rows) * least_cols));
    return {std::max(1, static_cast<int>(std::floor(least_rows * ratio))),
            std::max(1, static_cast<int>(std::floor(least_cols * ratio)))};
  }
  int rows = static_cast<int>(std::floor(std::sqrt(most * h / w)));
  int cols = static_cast<int>(std::floor(std::sqrt(most * w / h)));
  rows = std::max(rows, least_rows);
  cols = std::max(cols, least_cols);
  if (rows * cols > geometry.max_crops) {
    if (cols > rows) {
      cols = static_cast<int>(std::floor(most / rows));
    } else {
      rows = static_cast<int>(std::floor(most / cols));
    }
  }
  return {std::max(1, rows), std::max(1, cols)};
}

}  // namespace

Status CropGeometry::validate() const {
  if (crop_size < 1 || crop_size > kMaxCropSize || patch_size < 1 || crop_size % patch_size != 0) {
    return invalid_argument("vision: crop_size {} must be 1 to {} and a multiple of patch_size {}",
                            crop_size, kMaxCropSize, patch_size);
  }
  if (overlap_margin < 0 || overlap_margin > grid_patches() || window_patches() < 1) {
    return invalid_argument("vision: overlap_margin {} leaves nothing of {} patches",
                            overlap_margin, grid_patches());
  }
  if (max_crops < 1 || max_crops > kMaxTilesPerImage) {
    return invalid_argument("vision: max_crops {} must be 1 to {}", max_crops, kMaxTilesPerImage);
  }
  return ok_status();
}

StatusOr<Tiling> select_tiling(int width, int height, const CropGeometry& geometry) {
  GAPLESS_CHECK(width >= 1 && height >= 1);
  const Tiling tiling = unbounded_tiling(width, height, geometry);
  if (tiling.rows * tiling.cols > kMaxTilesPerImage) {
    return invalid_argument("image of {}x{} needs {}x{} crops, more than the {} allowed", width,
                            height, tiling.cols, tiling.rows, kMaxTilesPerImage);
  }
  return tiling;
}

int num_crops(const Tiling& tiling) {
  const int num_tiles = tiling.rows * tiling.cols;
  return num_tiles == 1 ? 1 : 1 + num_tiles;
}

bool make_crops_into(PictureRows& rows, int width, int height, const Tiling& tiling,
                     const CropGeometry& geometry, std::span<std::uint8_t* const> crops,
                     ThreadPool* pool, const std::function<void()>& decode, const StopCheck& stop,
                     DecodeHelpers* helpers) {
  GAPLESS_CHECK(crops.size() == static_cast<std::size_t>(num_crops(tiling)));
  const std::size_t crop_row_bytes = static_cast<std::size_t>(geometry.crop_size) * 3;
  const auto row_of_crop = [&](std::size_t crop, int y) {
    return crops[crop] + static_cast<std::size_t>(y) * crop_row_bytes;
  };
  std::vector<LanczosResize> resizes;
  resizes.emplace_back(
      width, height, geometry.crop_size, geometry.crop_size,
      [&](int y, const std::uint8_t* row) { std::memcpy(row_of_crop(0, y), row, crop_row_bytes); });
  // The canvas is never whole: each of its rows goes to the rows of tiles that it is in.
  const int window = geometry.window_pixels();
  const auto cut_row = [&](int canvas_y, const std::uint8_t* row) {
    for (int r = 0; r < tiling.rows; ++r) {
      const int y = canvas_y - r * window;
      if (y < 0 || y >= geometry.crop_size) continue;
      for (int c = 0; c < tiling.cols; ++c) {
        std::memcpy(row_of_crop(static_cast<std::size_t>(1 + r * tiling.cols + c), y),
                    row + static_cast<std::size_t>(c) * static_cast<std::size_t>(window) * 3,
                    crop_row_bytes);
      }
    }
  };
  if (num_crops(tiling) > 1) {
    resizes.emplace_back(width, height, geometry.canvas_pixels(tiling.cols),
                         geometry.canvas_pixels(tiling.rows), cut_row);
  }
  return run_resizes(resizes, rows, pool, decode, stop, helpers);
}

bool crops_read_rows_once(int width, int height, const Tiling& tiling,
                          const CropGeometry& geometry) {
  const int side = geometry.crop_size;
  return LanczosResize::reads_in_blocks(width, height, side, side) &&
         (num_crops(tiling) == 1 ||
          LanczosResize::reads_in_blocks(width, height, geometry.canvas_pixels(tiling.cols),
                                         geometry.canvas_pixels(tiling.rows)));
}

std::int64_t crop_memory_bytes(int width, int height, const Tiling& tiling,
                               const CropGeometry& geometry) {
  const int side = geometry.crop_size;
  std::int64_t bytes = LanczosResize::memory_bytes(width, height, side, side);
  if (num_crops(tiling) > 1) {
    bytes += LanczosResize::memory_bytes(width, height, geometry.canvas_pixels(tiling.cols),
                                         geometry.canvas_pixels(tiling.rows));
  }
  return bytes;
}

StatusOr<CropSet> make_crops(const Image& image, const CropGeometry& geometry) {
  GAPLESS_ASSIGN_OR_RETURN(const Tiling tiling, select_tiling(image.width, image.height, geometry));
  CropSet set{tiling, num_crops(tiling), {}};
  set.pixels.resize(static_cast<std::size_t>(set.num_crops) * geometry.crop_bytes());
  std::vector<std::uint8_t*> crops;
  for (int i = 0; i < set.num_crops; ++i) {
    crops.push_back(set.pixels.data() + static_cast<std::size_t>(i) * geometry.crop_bytes());
  }
  PictureRows rows(image.rgb.data(), image.height);
  make_crops_into(rows, image.width, image.height, tiling, geometry, crops);
  return set;
}

StitchSource stitch_source(int row, int col, const Tiling& tiling, const CropGeometry& geometry) {
  GAPLESS_CHECK(row >= 0 && row < geometry.stitched_patches(tiling.rows));
  GAPLESS_CHECK(col >= 0 && col < geometry.stitched_patches(tiling.cols));
  const int window = geometry.window_patches();
  const int margin = geometry.overlap_margin;
  // Patches left of the first window belong to the first tile, those right of the last to the last.
  const int tile_row = std::clamp((row - margin) / window, 0, tiling.rows - 1);
  const int tile_col = std::clamp((col - margin) / window, 0, tiling.cols - 1);
  const int crop = num_crops(tiling) == 1 ? 0 : 1 + tile_row * tiling.cols + tile_col;
  return {crop, row - tile_row * window, col - tile_col * window};
}

PoolWindow pool_window(int index, int in, int out) {
  GAPLESS_CHECK(out >= 1 && in >= 1 && index >= 0 && index < out);
  return {index * in / out, ((index + 1) * in + out - 1) / out};
}

}  // namespace gapless
