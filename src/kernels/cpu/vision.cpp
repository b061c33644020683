#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"

namespace gapless::cpu {

namespace {

template <typename T>
void patchify_as(const PatchifyParams& params) {
  const auto* lut = static_cast<const T*>(params.lut);
  const std::int64_t size = params.crop_size, ps = params.patch_size;
  const std::int64_t grid = size / ps;
  // One task: one row of patches of one crop.
  ThreadPool::shared().parallel_for(params.num_crops * grid, [&](std::int64_t task) {
    const std::uint8_t* band =
        params.crops + task / grid * size * size * 3 + task % grid * ps * size * 3;
    T* patches = static_cast<T*>(params.patches) + task * grid * params.patch_stride;
    for (std::int64_t px = 0; px < grid; ++px) {
      T* patch = patches + px * params.patch_stride;
      for (std::int64_t dy = 0; dy < ps; ++dy) {
        const std::uint8_t* pixels = band + (dy * size + px * ps) * 3;
        for (std::int64_t dx = 0; dx < ps; ++dx) {
          for (std::int64_t c = 0; c < 3; ++c) {
            patch[(c * ps + dy) * ps + dx] = lut[pixels[dx * 3 + c]];
          }
        }
      }
      std::fill(patch + 3 * ps * ps, patch + params.patch_stride, T{});
    }
  });
}

// Along one axis of the stitched local crops: which tile owns a position, and where it lies there.
class StitchedAxis {
 public:
  StitchedAxis(int num_tiles, const StitchAndPoolParams& params)
      : num_tiles_(num_tiles), margin_(params.overlap_margin), grid_(params.grid) {}

  std::int64_t length() const { return window() * num_tiles_ + 2 * margin_; }
  std::int64_t tile(std::int64_t at) const {
    return std::clamp<std::int64_t>((at - margin_) / window(), 0, num_tiles_ - 1);
  }
  std::int64_t local(std::int64_t at) const { return at - tile(at) * window(); }

  // Adaptive average pooling: output i covers [begin(i), end(i)).
  std::int64_t begin(std::int64_t i) const { return i * length() / grid_; }
  std::int64_t end(std::int64_t i) const { return ((i + 1) * length() + grid_ - 1) / grid_; }

 private:
  std::int64_t window() const { return grid_ - 2 * margin_; }
  std::int64_t num_tiles_, margin_, grid_;
};

template <typename T>
void stitch_and_pool_as(const StitchAndPoolParams& params) {
  const auto* features = static_cast<const T*>(params.features);
  const std::int64_t grid = params.grid, dim = params.dim;
  const StitchedAxis rows(params.tile_rows, params), columns(params.tile_cols, params);
  const std::int64_t first_tile = params.tile_rows * params.tile_cols == 1 ? 0 : 1;

  ThreadPool::shared().parallel_for(grid, [&](std::int64_t i) {
    for (std::int64_t j = 0; j < grid; ++j) {
      const std::int64_t p = i * grid + j;
      T* out = static_cast<T*>(params.out) + p * 2 * dim;
      std::copy_n(features + p * dim, dim, out);
      constexpr std::int64_t kChunk = 256;
      for (std::int64_t begin = 0; begin < dim; begin += kChunk) {
        const std::int64_t count = std::min(kChunk, dim - begin);
        float pooled[kChunk] = {};
        for (std::int64_t y = rows.begin(i); y < rows.end(i); ++y) {
          for (std::int64_t x = columns.begin(j); x < columns.end(j); ++x) {
            const std::int64_t crop =
                first_tile + rows.tile(y) * params.tile_cols + columns.tile(x);
            const std::int64_t patch = rows.local(y) * grid + columns.local(x);
            const T* from = features + (crop * grid * grid + patch) * dim + begin;
            for (std::int64_t d = 0; d < count; ++d) pooled[d] += to_float(from[d]);
          }
        }
        const auto height = static_cast<float>(rows.end(i) - rows.begin(i));
        const auto width = static_cast<float>(columns.end(j) - columns.begin(j));
        for (std::int64_t d = 0; d < count; ++d) {
          out[dim + begin + d] = rounded<T>(pooled[d] / height / width);
        }
      }
    }
  });
}

}  // namespace

void patchify(DType dtype, const PatchifyParams& params) {
  with_element(dtype, [&]<typename T>() { patchify_as<T>(params); });
}

void stitch_and_pool(DType dtype, const StitchAndPoolParams& params) {
  with_element(dtype, [&]<typename T>() { stitch_and_pool_as<T>(params); });
}

}  // namespace gapless::cpu
