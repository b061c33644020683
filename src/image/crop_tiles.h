// Cuts a picture into the overlapping square crops that the vision encoder sees, and says how
// their features are stitched together again. Formulas: Moondream reference (June 2025), tiling,
// overlap crops, reconstruction and pooling.
//
// One global crop (index 0) is the whole picture resized to crop_size x crop_size. If the picture
// is large enough it is also resized, aspect not kept, to a canvas of rows x cols overlapping
// windows; the window of tile (r, c) is crop 1 + r * cols + c. Sizes for Moondream 2:
//
//     |<---- crop 378 px = 27 patches ---->|
//     |margin 56|    window 266 px    |margin 56|
//                                     |<-- next crop starts 266 px further -->
//     canvas = 266 * tiles + 112 pixels per axis, stitched grid = 19 * tiles + 8 patches
//
// A 1x1 tiling's only local crop holds the same pixels as the global crop, so it is not made:
// num_crops is 1, and stitch_source points at crop 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "image/decode_helpers.h"
#include "image/image.h"
#include "image/picture_rows.h"
#include "image/stop_check.h"

namespace gapless {

// From the model's configuration. Defaults: Moondream 2.
struct CropGeometry {
  int crop_size = 378;     // pixels
  int patch_size = 14;     // pixels
  int overlap_margin = 4;  // patches on each side
  int max_crops = 12;      // local crops that select_tiling aims at; extreme shapes exceed it

  Status validate() const;  // call once when the configuration is read

  int grid_patches() const { return crop_size / patch_size; }                 // 27
  int window_patches() const { return grid_patches() - 2 * overlap_margin; }  // 19
  int margin_pixels() const { return overlap_margin * patch_size; }           // 56
  int window_pixels() const { return window_patches() * patch_size; }         // 266
  int canvas_pixels(int tiles) const { return window_pixels() * tiles + 2 * margin_pixels(); }
  int stitched_patches(int tiles) const { return window_patches() * tiles + 2 * overlap_margin; }
  std::size_t crop_bytes() const {
    return static_cast<std::size_t>(crop_size) * static_cast<std::size_t>(crop_size) * 3;
  }
};

struct Tiling {
  int rows = 1;
  int cols = 1;
  friend bool operator==(const Tiling&, const Tiling&) = default;
};

// Width and height in pixels, at least 1. Error: more than kMaxTilesPerImage tiles.
StatusOr<Tiling> select_tiling(int width, int height, const CropGeometry& geometry);

// Crops to encode for a tiling, the global one included.
int num_crops(const Tiling& tiling);

struct CropSet {
  Tiling tiling;
  int num_crops = 0;
  std::vector<std::uint8_t> pixels;  // [num_crops][crop_size][crop_size][3]
};

StatusOr<CropSet> make_crops(const Image& image, const CropGeometry& geometry);

// The same into the caller's memory (pinned, for one): each of num_crops(tiling) crops takes
// geometry.crop_bytes() bytes, and tiling is select_tiling's answer for a picture of width x
// height, whose rows are in `rows`. The work is shared with `pool`, if there is one. With `decode`,
// which publishes the rows or gives up, it goes on while they come, and `decode`'s helpers are threads of the pool (run_resizes). The result is the
// same. False: `stop` said so, and the crops are not whole.
bool make_crops_into(PictureRows& rows, int width, int height, const Tiling& tiling,
                     const CropGeometry& geometry, std::span<std::uint8_t* const> crops,
                     ThreadPool* pool = nullptr, const std::function<void()>& decode = nullptr,
                     const StopCheck& stop = {}, DecodeHelpers* helpers = nullptr);

// Whether that reads each row of such a picture once, from the top, so that rows need not stay (PictureRows).
bool crops_read_rows_once(int width, int height, const Tiling& tiling,
                          const CropGeometry& geometry);

// What that holds in memory beside the picture and the crops.
std::int64_t crop_memory_bytes(int width, int height, const Tiling& tiling,
                               const CropGeometry& geometry);

// Where a patch of the stitched grid comes from.
struct StitchSource {
  int crop = 0;  // index into CropSet
  int row = 0;   // patch within that crop
  int col = 0;
  friend bool operator==(const StitchSource&, const StitchSource&) = default;
};

// row in [0, geometry.stitched_patches(tiling.rows)), col likewise with cols. Every patch of the
// grid comes from the tile whose window it lies in; the margins of the outer tiles fill the rim.
StitchSource stitch_source(int row, int col, const Tiling& tiling, const CropGeometry& geometry);

// Adaptive average pooling: output `index` of `out` averages the inputs [begin, end) of `in`.
struct PoolWindow {
  int begin = 0;
  int end = 0;
  friend bool operator==(const PoolWindow&, const PoolWindow&) = default;
};
PoolWindow pool_window(int index, int in, int out);

}  // namespace gapless
