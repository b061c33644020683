#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

void patchify(const PatchifyParams& params) {
  const auto* lut = static_cast<const float*>(params.lut);
  auto* patches = static_cast<float*>(params.patches);
  const std::int64_t size = params.crop_size;
  const std::int64_t ps = params.patch_size;
  const std::int64_t grid = size / ps;

  for (std::int64_t n = 0; n < params.num_crops; ++n) {
    const std::uint8_t* crop = params.crops + n * size * size * 3;
    for (std::int64_t p = 0; p < grid * grid; ++p) {
      const std::int64_t py = p / grid, px = p % grid;
      float* patch = patches + (n * grid * grid + p) * params.patch_stride;
      std::fill(patch, patch + params.patch_stride, 0.0f);
      for (std::int64_t c = 0; c < 3; ++c) {
        for (std::int64_t dy = 0; dy < ps; ++dy) {
          for (std::int64_t dx = 0; dx < ps; ++dx) {
            const std::int64_t y = py * ps + dy, x = px * ps + dx;
            patch[(c * ps + dy) * ps + dx] = lut[crop[(y * size + x) * 3 + c]];
          }
        }
      }
    }
  }
}

void vision_attention(const VisionAttentionParams& params) {
  const auto* qkv = static_cast<const float*>(params.qkv);
  auto* out = static_cast<float*>(params.out);
  const std::int64_t width = std::int64_t{params.num_heads} * params.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(params.head_dim));
  std::vector<double> weights(static_cast<std::size_t>(params.seq_len));

  for (std::int64_t n = 0; n < params.num_crops; ++n) {
    for (std::int64_t h = 0; h < params.num_heads; ++h) {
      const float* head = qkv + n * params.seq_len * 3 * width + h * params.head_dim;
      for (std::int64_t i = 0; i < params.seq_len; ++i) {
        const float* q = head + i * 3 * width;
        double largest = -INFINITY;
        for (std::int64_t j = 0; j < params.seq_len; ++j) {
          const float* k = head + j * 3 * width + width;
          double dot = 0;
          for (int d = 0; d < params.head_dim; ++d) dot += static_cast<double>(q[d]) * k[d];
          weights[j] = dot * scale;
          largest = std::max(largest, weights[j]);
        }
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (int d = 0; d < params.head_dim; ++d) {
          double value = 0;
          for (std::int64_t j = 0; j < params.seq_len; ++j) {
            value += weights[j] * head[j * 3 * width + 2 * width + d];
          }
          out[(n * params.seq_len + i) * width + h * params.head_dim + d] =
              static_cast<float>(value / sum);
        }
      }
    }
  }
}

namespace {

// The stitched grid of the local crops, without building it: each crop owns its window plus, at the
// border of the image, its margin. Moondream reference (June 2025), reconstruct_from_crops.
struct StitchedGrid {
  const StitchAndPoolParams& params;

  std::int64_t window() const { return params.grid - 2 * params.overlap_margin; }
  std::int64_t length(int tiles) const { return window() * tiles + 2 * params.overlap_margin; }

  std::int64_t tile_at(std::int64_t position, int tiles) const {
    return std::clamp<std::int64_t>((position - params.overlap_margin) / window(), 0, tiles - 1);
  }

  // Features of the patch at (row, column) of the stitched grid.
  const float* at(std::int64_t row, std::int64_t column) const {
    const std::int64_t grid = params.grid;
    const std::int64_t tile_row = tile_at(row, params.tile_rows);
    const std::int64_t tile_column = tile_at(column, params.tile_cols);
    const bool single = params.tile_rows == 1 && params.tile_cols == 1;
    const std::int64_t crop = single ? 0 : 1 + tile_row * params.tile_cols + tile_column;
    const std::int64_t local_row = row - tile_row * window();
    const std::int64_t local_column = column - tile_column * window();
    return static_cast<const float*>(params.features) +
           ((crop * grid + local_row) * grid + local_column) * params.dim;
  }
};

}  // namespace

void stitch_and_pool(const StitchAndPoolParams& params) {
  const StitchedGrid stitched{params};
  const std::int64_t grid = params.grid, dim = params.dim;
  const std::int64_t num_rows = stitched.length(params.tile_rows);
  const std::int64_t num_columns = stitched.length(params.tile_cols);
  const auto* global = static_cast<const float*>(params.features);

  for (std::int64_t p = 0; p < grid * grid; ++p) {
    float* out = static_cast<float*>(params.out) + p * 2 * dim;
    std::copy(global + p * dim, global + (p + 1) * dim, out);
    // Adaptive average: window i of n inputs covers [floor(i n / grid), ceil((i + 1) n / grid)).
    const std::int64_t i = p / grid, j = p % grid;
    const std::int64_t row_begin = i * num_rows / grid;
    const std::int64_t row_end = ((i + 1) * num_rows + grid - 1) / grid;
    const std::int64_t column_begin = j * num_columns / grid;
    const std::int64_t column_end = ((j + 1) * num_columns + grid - 1) / grid;
    for (std::int64_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (std::int64_t row = row_begin; row < row_end; ++row) {
        for (std::int64_t column = column_begin; column < column_end; ++column) {
          sum += stitched.at(row, column)[d];
        }
      }
      const auto count = (row_end - row_begin) * (column_end - column_begin);
      out[dim + d] = static_cast<float>(sum / static_cast<double>(count));
    }
  }
}

}  // namespace gapless::reference
