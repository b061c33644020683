// Crops to patch vectors, and encoder features to the projector's input.
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kPatchifyThreads = 256;
constexpr int kPoolThreads = 128;

// One block per row of patches: it reads patch_size whole image rows, so neighbouring threads read
// neighbouring bytes and the shared table turns them into bf16.
__global__ void __launch_bounds__(kPatchifyThreads) patchify_kernel(PatchifyParams p) {
  __shared__ Bf16 lut[256];
  let_successor_start();
  wait_for_predecessor();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) lut[i] = static_cast<const Bf16*>(p.lut)[i];
  __syncthreads();

  const int grid = p.crop_size / p.patch_size;
  const int py = blockIdx.x, ps = p.patch_size;
  const std::int64_t crop = blockIdx.y;
  const std::uint8_t* rows =
      p.crops + (crop * p.crop_size + std::int64_t{py} * ps) * p.crop_size * 3;
  Bf16* patches = static_cast<Bf16*>(p.patches) +
                  (crop * grid * grid + std::int64_t{py} * grid) * p.patch_stride;
  const int used = 3 * ps * ps;
  const int row_bytes = grid * ps * 3;
  for (int i = threadIdx.x; i < ps * row_bytes; i += blockDim.x) {
    const int dy = i / row_bytes, in_row = i % row_bytes;
    const int x = in_row / 3, channel = in_row % 3;
    const int px = x / ps, dx = x % ps;
    patches[std::int64_t{px} * p.patch_stride + (channel * ps + dy) * ps + dx] =
        lut[rows[std::int64_t{dy} * p.crop_size * 3 + in_row]];
  }
  const int padding = p.patch_stride - used;
  for (int i = threadIdx.x; i < grid * padding; i += blockDim.x) {
    patches[std::int64_t{i / padding} * p.patch_stride + used + i % padding] = Bf16(0.0f);
  }
}

// One side of the stitched grid: each tile owns a window of `grid - 2 margin` positions, the
// outermost ones their margin as well.
struct StitchedSide {
  int tiles, window, margin, grid;

  __device__ int length() const { return window * tiles + 2 * margin; }
  __device__ int tile_at(int position) const {
    return min(max(position - margin, 0) / window, tiles - 1);
  }
  // Adaptive average: output i of `grid` covers [floor(i n / grid), ceil((i + 1) n / grid)).
  __device__ int begin(int i) const { return i * length() / grid; }
  __device__ int end(int i) const { return ((i + 1) * length() + grid - 1) / grid; }
};

// One block per pooled patch.
__global__ void __launch_bounds__(kPoolThreads) stitch_and_pool_kernel(StitchAndPoolParams p) {
  let_successor_start();
  wait_for_predecessor();
  const int window = p.grid - 2 * p.overlap_margin;
  const StitchedSide rows{p.tile_rows, window, p.overlap_margin, p.grid};
  const StitchedSide columns{p.tile_cols, window, p.overlap_margin, p.grid};
  const int patch = blockIdx.x, i = patch / p.grid, j = patch % p.grid;
  const int row_begin = rows.begin(i), row_end = rows.end(i);
  const int column_begin = columns.begin(j), column_end = columns.end(j);
  const bool single = p.tile_rows == 1 && p.tile_cols == 1;
  const auto* features = static_cast<const Bf16*>(p.features);
  Bf16* out = static_cast<Bf16*>(p.out) + std::int64_t{patch} * 2 * p.dim;

  for (int d = threadIdx.x * kVector; d < p.dim; d += blockDim.x * kVector) {
    *reinterpret_cast<uint4*>(out + d) =
        *reinterpret_cast<const uint4*>(features + std::int64_t{patch} * p.dim + d);
    float sum[kVector] = {};
    for (int row = row_begin; row < row_end; ++row) {
      const int tile_row = rows.tile_at(row);
      for (int column = column_begin; column < column_end; ++column) {
        const int tile_column = columns.tile_at(column);
        const std::int64_t crop = single ? 0 : 1 + tile_row * p.tile_cols + tile_column;
        const std::int64_t at =
            (crop * p.grid + row - tile_row * window) * p.grid + column - tile_column * window;
        float values[kVector];
        load_vector(features + at * p.dim + d, values);
#pragma unroll
        for (int v = 0; v < kVector; ++v) sum[v] += values[v];
      }
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      sum[v] = sum[v] / (row_end - row_begin) / (column_end - column_begin);
    }
    store_vector(out + p.dim + d, sum);
  }
}

}  // namespace

Status patchify(Stream& stream, const PatchifyParams& params) {
  if (params.patch_size <= 0 || params.crop_size % params.patch_size != 0 ||
      params.patch_stride < 3 * params.patch_size * params.patch_size) {
    return Status(StatusCode::kInvalidArgument,
                  "patchify: the patch size must divide the crop size");
  }
  const unsigned grid = static_cast<unsigned>(params.crop_size / params.patch_size);
  return launch("patchify", stream,
                {.grid = dim3(grid, static_cast<unsigned>(params.num_crops)),
                 .block = dim3(kPatchifyThreads)},
                patchify_kernel, params);
}

Status stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) {
  if (params.dim % kVector != 0 || params.grid <= 2 * params.overlap_margin) {
    return Status(
        StatusCode::kInvalidArgument,
        "stitch_and_pool: the width must be a multiple of 8, the margins under half the grid");
  }
  return launch(
      "stitch_and_pool", stream,
      {.grid = dim3(static_cast<unsigned>(params.grid * params.grid)), .block = dim3(kPoolThreads)},
      stitch_and_pool_kernel, params);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
