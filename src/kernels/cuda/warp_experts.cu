// Products over experts of sorted rows, by warps (warp_experts.h).
#include <type_traits>

#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp_experts.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// A block of the product: so many sorted pairs by so many rows of the weights, and pieces of both that are in shared
// memory at a time, all but one of them on their way.
//
// Of up to kMaxFlatRows rows: few of them chose each expert, and all that counts is how fast weights come. It holds the sums of all slices
// at once (expert_product.cuh), so that it reads columns in the order of memory.
struct FlatProduct {
  static constexpr int kRows = kFlatTileRows, kBuffers = 4;
  static constexpr bool kHoldsSlices = true;
};
struct SquareProduct {
  static constexpr int kRows = kSquareTileRows, kBuffers = 2;
  static constexpr bool kHoldsSlices = false;
};

// The pieces of a product that holds all slices, as SliceWalk's.
struct ColumnWalk {
  int columns;
  int at = 0;

  __device__ bool is_done() const { return at >= columns; }
  __device__ int begin() const { return at; }
  __device__ void advance() { at += kSliceColumns; }
};
constexpr int kBlockColumns = 64;
constexpr int kBlockWarps = 4;  // 16 columns each

// Where 16 bytes of a row of a tile in shared memory lie: rows next to each other begin in different halves, so
// that lanes 0 to 7, which read 64 bytes each of two rows, meet every bank once.
__device__ int swizzled(int row, int vector) {
  return (vector ^ (row % 2 * (kSliceColumns / kVector / 2))) * kVector;
}

// Blocks: x = columns, y = tile.
template <typename Shape>
__global__ void __launch_bounds__(kBlockWarps* kWarp) product_kernel(SortedProduct p) {
  constexpr int kBlockRows = Shape::kRows, kBuffers = Shape::kBuffers;
  constexpr int kThreads = kBlockWarps * kWarp;
  constexpr int kPieces = kSliceColumns / kVector;  // of a row
  __shared__ alignas(16) Bf16 x_tile[kBuffers][kBlockRows][kSliceColumns];
  __shared__ alignas(16) Bf16 w_tile[kBuffers][kBlockColumns][kSliceColumns];
  __shared__ std::int64_t x_rows[kBlockRows];
  let_successor_start();
  wait_for_predecessor();
  if (blockIdx.y >= *p.num_tiles) return;
  const ExpertTile tile = p.tiles[blockIdx.y];
  const int first_column = blockIdx.x * kBlockColumns;
  for (int r = threadIdx.x; r < tile.count; r += kThreads) {
    const int place = tile.first + r;
    x_rows[r] = p.pairs_per_row > 0 ? p.order[place] / p.pairs_per_row : place;
  }
  __syncthreads();
  const auto* weights =
      static_cast<const Bf16*>(p.weights) + std::int64_t{tile.expert} * p.out * p.in;
  const auto* x = static_cast<const Bf16*>(p.x);

  const auto load = [&](int buffer, int begin) {
    for (int i = threadIdx.x; i < kBlockRows * kPieces; i += kThreads) {
      const int r = i / kPieces, at = begin + i % kPieces * kVector;
      const bool valid = r < tile.count && at < p.in;
      copy_async_16(shared_address(&x_tile[buffer][r][swizzled(r, i % kPieces)]),
                    valid ? x + x_rows[r] * p.x_stride + at : x, valid);
    }
    for (int i = threadIdx.x; i < kBlockColumns * kPieces; i += kThreads) {
      const int c = i / kPieces, at = begin + i % kPieces * kVector;
      const bool valid = first_column + c < p.out && at < p.in;
      copy_async_16(shared_address(&w_tile[buffer][c][swizzled(c, i % kPieces)]),
                    valid ? weights + std::int64_t{first_column + c} * p.in + at : weights, valid);
    }
  };
  std::conditional_t<Shape::kHoldsSlices, ColumnWalk, SliceWalk> ahead{p.in};
  int filling = 0;
  // A group of copies for each piece, and empty ones behind the last.
  const auto load_next = [&] {
    if (!ahead.is_done()) {
      load(filling, ahead.begin());
      ahead.advance();
    }
    commit_async_copies();
    filling = (filling + 1) % kBuffers;
  };

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int lane_row = lane / 4;
  const int num_parts = (tile.count + 7) / 8;  // of 8 rows
  constexpr int kParts = kBlockRows / 8;
  int buffer = 0;
  // The next piece's products.
  const auto multiply = [&](float(&sums)[kParts][4]) {
    wait_async_copies<kBuffers - 2>();
    __syncthreads();
    load_next();  // over the piece before this one, which all are through with
#pragma unroll
    for (int s = 0; s < kStepsPerSlice; ++s) {
      const int vector = s * (kStepColumns / kVector) + lane % 4;
      const auto read_weights = [&](int row) {
        return *reinterpret_cast<const uint4*>(&w_tile[buffer][row][swizzled(row, vector)]);
      };
      const uint4 low = read_weights(warp * 16 + lane_row);
      const uint4 high = read_weights(warp * 16 + lane_row + 8);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (part >= num_parts) continue;
        const int row = part * 8 + lane_row;
        multiply_step(sums[part], low, high,
                      *reinterpret_cast<const uint4*>(&x_tile[buffer][row][swizzled(row, vector)]));
      }
    }
    buffer = (buffer + 1) % kBuffers;
  };
  float totals[kParts][4] = {};
  const auto add = [&](const float(&sums)[kParts][4]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i) totals[part][i] += sums[part][i];
    }
  };
#pragma unroll
  for (int i = 0; i < kBuffers - 1; ++i) load_next();
  if constexpr (Shape::kHoldsSlices) {
    float sums[kNumSlices][kParts][4] = {};
    for (int chunk = 0; chunk < p.in; chunk += kChunkColumns) {
#pragma unroll
      for (int slice = 0; slice < kNumSlices; ++slice) {
        if (chunk + slice * kSliceColumns < p.in) multiply(sums[slice]);
      }
    }
#pragma unroll
    for (int slice = 0; slice < kNumSlices; ++slice) add(sums[slice]);
  } else {
    float sums[kParts][4] = {};
    for (SliceWalk piece{p.in}; !piece.is_done(); piece.advance()) {
      multiply(sums);
      if (!piece.ends_slice()) continue;
      add(sums);
#pragma unroll
      for (auto& part : sums) {
#pragma unroll
        for (float& sum : part) sum = 0;
      }
    }
  }
  // Lanes of neighbouring columns change values: each has both columns of one row then.
  const bool is_odd = lane_row % 2 != 0;
#pragma unroll
  for (int part = 0; part < kBlockRows / 8; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // columns l/4 and l/4 + 8
      const float own[2] = {totals[part][half * 2], totals[part][half * 2 + 1]};
      const float other = __shfl_xor_sync(kFullWarp, is_odd ? own[0] : own[1], 4);
      const int row = part * 8 + lane % 4 * 2 + (is_odd ? 1 : 0);
      const int column = first_column + warp * 16 + half * 8 + lane_row / 2 * 2;
      if (row >= tile.count || column >= p.out) continue;
      *reinterpret_cast<std::uint32_t*>(p.y + std::int64_t{tile.first + row} * p.y_stride +
                                        column) =
          is_odd ? pack_bf16x2(other, own[1]) : pack_bf16x2(own[0], other);
    }
  }
}

template <typename Shape>
Status launch_product(Stream& stream, const SortedProduct& params, int max_tiles) {
  const LaunchShape shape{
      .grid = dim3(blocks_for(params.out, kBlockColumns), static_cast<unsigned>(max_tiles)),
      .block = dim3(kBlockWarps * kWarp)};
  return launch("experts product", stream, shape, product_kernel<Shape>, params);
}

}  // namespace

Status multiply_by_warps(Stream& stream, const SortedProduct& product, int tile_rows,
                         int max_tiles) {
  return tile_rows == FlatProduct::kRows
             ? launch_product<FlatProduct>(stream, product, max_tiles)
             : launch_product<SquareProduct>(stream, product, max_tiles);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
