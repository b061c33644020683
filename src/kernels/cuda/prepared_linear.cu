#include <cuda_fp8.h>

#include <string>
#include <string_view>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/fp8_tile.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prepared_linear.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kPrepareThreads = 256;
constexpr int kSteps = kPreparedTileColumns / 16;

struct Part {
  int num_tiles, num_chunks;
};

// Where a tile of the part lies, in bytes from the start of the whole.
template <PreparedFormat kFormat, typename Params>
__device__ std::int64_t tile_offset(const Params& p, std::int64_t tile, int chunk) {
  const std::int64_t all_tiles = (p.total_out + kPreparedTileRows - 1) / kPreparedTileRows;
  return prepared_tile_offset<kFormat>(all_tiles, p.first_out / kPreparedTileRows + tile,
                                       p.first_in / kPreparedTileColumns + chunk);
}

template <PreparedFormat kFormat>
__device__ char* tile_at(const PrepareLinearParams& p, std::int64_t tile, int chunk) {
  return static_cast<char*>(p.prepared) + tile_offset<kFormat>(p, tile, chunk);
}

template <PreparedFormat kFormat>
__device__ const char* tile_at(const RestoreLinearParams& p, std::int64_t tile, int chunk) {
  return static_cast<const char*>(p.prepared) + tile_offset<kFormat>(p, tile, chunk);
}

// Which of a part's `rows` rows is the `row`-th in its tiles.
__device__ std::int64_t row_in_part(bool halves_alternate, std::int64_t row, int rows) {
  return halves_alternate ? row / 2 + row % 2 * (rows / 2) : row;
}
// And which in its tiles is the part's `row`-th.
__device__ std::int64_t row_in_tiles(bool halves_alternate, std::int64_t row, int rows) {
  if (!halves_alternate) return row;
  return row < rows / 2 ? 2 * row : 2 * (row - rows / 2) + 1;
}

// One thread per lane's fragment of one mma step: 16 bytes.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_native_kernel(PrepareLinearParams p, Part part) {
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t i = std::int64_t{blockIdx.x} * kPrepareThreads + threadIdx.x;
  const int lane = i % kWarp, step = i / kWarp % kSteps;
  const std::int64_t block = i / (kWarp * kSteps);
  const int chunk = block % part.num_chunks;
  const std::int64_t tile = block / part.num_chunks;
  if (tile >= part.num_tiles) return;
  const LinearWeights& w = p.weights;
  const auto* weight = static_cast<const std::uint16_t*>(w.weight);
  std::uint32_t fragment[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const std::int64_t row =
        row_in_part(p.halves_alternate, tile * kPreparedTileRows + lane / 4 + r % 2 * 8, w.out);
    const int column = chunk * kPreparedTileColumns + step * 16 + lane % 4 * 2 + r / 2 * 8;
    auto at = [&](int c) -> std::uint32_t {
      return row < w.out && c < w.in ? weight[row * w.in + c] : 0u;
    };
    fragment[r] = at(column) | at(column + 1) << 16;
  }
  auto* to = reinterpret_cast<uint4*>(tile_at<PreparedFormat::kNative>(p, tile, chunk));
  to[step * kWarp + lane] = uint4{fragment[0], fragment[1], fragment[2], fragment[3]};
}

// One block per row of tiles.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_fp8_kernel(PrepareLinearParams p, Part part) {
  let_successor_start();
  wait_for_predecessor();
  const LinearWeights& w = p.weights;
  const auto* weight = static_cast<const Bf16*>(w.weight);
  const std::int64_t first_row = std::int64_t{blockIdx.x} * kPreparedTileRows;
  __shared__ int exponents[kPreparedTileRows];
  constexpr int kThreadsPerRow = kPrepareThreads / kPreparedTileRows;
  const int own_row = threadIdx.x / kThreadsPerRow;
  float largest = 0;
  const std::int64_t source = row_in_part(p.halves_alternate, first_row + own_row, w.out);
  for (int c = threadIdx.x % kThreadsPerRow; first_row + own_row < w.out && c < w.in;
       c += kThreadsPerRow) {
    largest = fmaxf(largest, fabsf(__bfloat162float(weight[source * w.in + c])));
  }
  for (int offset = 1; offset < kThreadsPerRow; offset *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, offset));
  }
  if (threadIdx.x % kThreadsPerRow == 0) exponents[own_row] = fp8_row_exponent(largest);
  __syncthreads();

  // A lane's fragments of a pair of steps: 16 bytes.
  constexpr int kPieces = kSteps / 2 * kWarp;
  for (int i = threadIdx.x; i < part.num_chunks * kPieces; i += kPrepareThreads) {
    const int chunk = i / kPieces, pair = i / kWarp % (kSteps / 2), lane = i % kWarp;
    std::uint32_t packed[4] = {};
    for (int at = 0; at < 16; ++at) {
      const int word = at / 4, byte = at % 4;
      const int row = lane / 4 + (byte >= 2 ? 8 : 0);
      const int column = chunk * kPreparedTileColumns + (pair * 2 + word / 2) * 16 + lane % 4 * 2 +
                         word % 2 * 8 + byte % 2;
      if (first_row + row >= w.out || column >= w.in) continue;
      const std::int64_t from = row_in_part(p.halves_alternate, first_row + row, w.out);
      const float value = __bfloat162float(weight[from * w.in + column]);
      const std::uint32_t code =
          __nv_cvt_float_to_fp8(ldexpf(value, -exponents[row]), __NV_SATFINITE, __NV_E4M3);
      packed[word] |= code << (8 * byte);
    }
    auto* to = reinterpret_cast<uint4*>(tile_at<PreparedFormat::kFp8>(p, blockIdx.x, chunk));
    to[pair * kWarp + lane] = uint4{packed[0], packed[1], packed[2], packed[3]};
  }
  for (int i = threadIdx.x; i < part.num_chunks * kPreparedTileRows; i += kPrepareThreads) {
    const int chunk = i / kPreparedTileRows, row = i % kPreparedTileRows;
    char* behind = tile_at<PreparedFormat::kFp8>(p, blockIdx.x, chunk) +
                   kPreparedTileRows * kPreparedTileColumns;
    behind[row] = static_cast<char>(fp8_scale_byte(exponents[row]));
  }
}

// Where the two neighbours lie that a thread restores: columns `column` and `column` + 1 of a row. Both are in one register of
// one lane, in both formats, and a matrix has an even number of columns.
struct NeighbourPlace {
  std::int64_t row;  // in its tiles
  int column;
  int in_row;  // of the tile's 16
  int step;    // of the tile's 8, 16 columns each
  int lane;    // as the prepare kernels have it: 4 lanes for each row of half a tile
  int row_half, column_half;
};

__device__ NeighbourPlace place_of_neighbours(const RestoreLinearParams& p, std::int64_t pair) {
  const int pairs_per_row = p.in / 2;
  const std::int64_t row = row_in_tiles(p.halves_alternate, pair / pairs_per_row, p.out);
  const int column = static_cast<int>(pair % pairs_per_row) * 2;
  const int in_row = static_cast<int>(row % kPreparedTileRows), in_step = column % 16;
  return {.row = row,
          .column = column,
          .in_row = in_row,
          .step = column % kPreparedTileColumns / 16,
          .lane = in_row % 8 * 4 + in_step % 8 / 2,
          .row_half = in_row / 8,
          .column_half = in_step / 8};
}

template <PreparedFormat kFormat>
__device__ const char* tile_of(const RestoreLinearParams& p, const NeighbourPlace& place) {
  return tile_at<kFormat>(p, place.row / kPreparedTileRows, place.column / kPreparedTileColumns);
}

// A warp writes eight rows at a time. What comes next multiplies by what is written here: it does not start early.
__global__ void __launch_bounds__(kPrepareThreads)
    restore_native_kernel(RestoreLinearParams p, std::int64_t num_pairs) {
  wait_for_predecessor();
  const std::int64_t i = std::int64_t{blockIdx.x} * kPrepareThreads + threadIdx.x;
  if (i >= num_pairs) return;
  const NeighbourPlace place = place_of_neighbours(p, i);
  const int r = place.row_half + place.column_half * 2;
  const auto* from =
      reinterpret_cast<const std::uint32_t*>(tile_of<PreparedFormat::kNative>(p, place));
  static_cast<std::uint32_t*>(p.weight)[i] = from[(place.step * kWarp + place.lane) * 4 + r];
}

__global__ void __launch_bounds__(kPrepareThreads)
    restore_fp8_kernel(RestoreLinearParams p, std::int64_t num_pairs) {
  wait_for_predecessor();
  const std::int64_t i = std::int64_t{blockIdx.x} * kPrepareThreads + threadIdx.x;
  if (i >= num_pairs) return;
  const NeighbourPlace place = place_of_neighbours(p, i);
  const char* tile = tile_of<PreparedFormat::kFp8>(p, place);
  // A lane has four words of a pair of steps: by step, then by columns' half. A word has two halves: by rows' half.
  const int word = place.step % 2 * 2 + place.column_half;
  const int at = ((place.step / 2 * kWarp + place.lane) * 4 + word) * 4 + place.row_half * 2;
  const auto codes = *reinterpret_cast<const std::uint16_t*>(tile + at);
  const float scale = fp8_scale(
      static_cast<std::uint8_t>(tile[kPreparedTileRows * kPreparedTileColumns + place.in_row]));
  const float2 pair = __half22float2(
      __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3)));
  static_cast<std::uint32_t*>(p.weight)[i] = pack_bf16x2(pair.x * scale, pair.y * scale);
}

Part part_of(int in, int out) {
  return {.num_tiles = (out + kPreparedTileRows - 1) / kPreparedTileRows,
          .num_chunks = (in + kPreparedTileColumns - 1) / kPreparedTileColumns};
}

// Refuses what is no part of the whole that `params` describes.
template <typename Params>
Status check_part(std::string_view op, const Params& params, int in, int out) {
  if (params.first_out % kPreparedTileRows != 0 || params.first_in % kPreparedTileColumns != 0) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(op) + ": a part must start at a multiple of 16 rows and 128 columns");
  }
  if (params.halves_alternate && out % kPreparedTileRows != 0) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(op) + ": halves alternate in whole tiles only");
  }
  if (params.first_out + out > params.total_out || params.first_in + in > params.total_in) {
    return Status(StatusCode::kInvalidArgument, std::string(op) + ": a part must lie in the whole");
  }
  return ok_status();
}

}  // namespace

std::size_t prepared_linear_bytes(int in, int out, PreparedFormat format) {
  const Part whole = part_of(in, out);
  const int tile_bytes = format == PreparedFormat::kFp8
                             ? kPreparedTileBytes<PreparedFormat::kFp8>
                             : kPreparedTileBytes<PreparedFormat::kNative>;
  return static_cast<std::size_t>(whole.num_tiles) * static_cast<std::size_t>(whole.num_chunks) *
         static_cast<std::size_t>(tile_bytes);
}

Status prepare_linear(Stream& stream, const PrepareLinearParams& params) {
  const LinearWeights& w = params.weights;
  GAPLESS_RETURN_IF_ERROR(check_part("prepare_linear", params, w.in, w.out));
  const Part part = part_of(w.in, w.out);
  if (params.format == PreparedFormat::kFp8) {
    return launch(
        "prepare_linear", stream,
        {.grid = dim3(static_cast<unsigned>(part.num_tiles)), .block = dim3(kPrepareThreads)},
        prepare_fp8_kernel, params, part);
  }
  const std::int64_t fragments = std::int64_t{part.num_tiles} * part.num_chunks * kWarp * kSteps;
  return launch(
      "prepare_linear", stream,
      {.grid = dim3(blocks_for(fragments, kPrepareThreads)), .block = dim3(kPrepareThreads)},
      prepare_native_kernel, params, part);
}

Status restore_linear(Stream& stream, const RestoreLinearParams& params) {
  GAPLESS_RETURN_IF_ERROR(check_part("restore_linear", params, params.in, params.out));
  if (params.in % 2 != 0) {
    return Status(StatusCode::kInvalidArgument, "restore_linear: an odd number of columns");
  }
  const std::int64_t num_pairs = std::int64_t{params.out} * (params.in / 2);
  const auto kernel =
      params.format == PreparedFormat::kFp8 ? restore_fp8_kernel : restore_native_kernel;
  return launch(
      "restore_linear", stream,
      {.grid = dim3(blocks_for(num_pairs, kPrepareThreads)), .block = dim3(kPrepareThreads)},
      kernel, params, num_pairs);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
