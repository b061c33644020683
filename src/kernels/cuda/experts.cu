// Experts (ExpertsParams). Few rows: few_row_experts.cu. Many, as six launches behind the router's product:
// choose, sort, up, gate, down and add.
//
// A pair is a row and one of its experts; pair number row * experts_per_token + i is the row's i-th
// choice. Pairs are sorted by expert, so that a tile of a product has rows of one expert alone. In
// which order pairs of one expert lie is left to chance (atomics); no result depends on it, because an
// output's sum runs along k in one order (expert_product.cuh) wherever in a tile its row is. A row's experts are added up
// by their indices, as where rows are few.
//
// Where there are warpgroups they make the products (grouped_experts.h), the first of them with its gates.
#include <algorithm>
#include <type_traits>

#include "base/limits.h"
#include "device/bump_layout.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/expert_choice.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/expert_weights.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/few_row_experts.h"
#include "kernels/cuda/grouped_experts.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/dense_ops.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// A block of the product: so many sorted pairs by so many rows of the weights, and pieces of both that are in shared
// memory at a time, all but one of them on their way.
//
// Of up to kMaxFlatRows rows: few of them chose each expert, and all that counts is how fast weights come. It holds the sums of all slices
// at once (expert_product.cuh), so that it reads columns in the order of memory.
inline constexpr int kMaxFlatRows = 64;
struct FlatProduct {
  static constexpr int kRows = 8, kBuffers = 4;
  static constexpr bool kHoldsSlices = true;
};
struct SquareProduct {
  static constexpr int kRows = 64, kBuffers = 2;
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
constexpr int kBlockWarps = 4;      // 16 columns each
constexpr int kSortThreads = 1024;  // of one block
constexpr int kChooseWarps = 4;     // a row each

// Whether warpgroups multiply, however many rows there are.
constexpr bool kIsGrouped = kPath.has_warpgroups;

// Where the arrays lie in scratch. Logits come first: unless they lie elsewhere, the caller of experts() puts them there.
struct Scratch {
  Scratch(BumpLayout& layout, int num_rows, const ExpertSizes& sizes) {
    const auto rows = static_cast<std::size_t>(num_rows);
    const std::size_t pairs = rows * static_cast<std::size_t>(sizes.experts_per_token);
    logits = layout.take_array<Bf16>(rows * static_cast<std::size_t>(sizes.num_experts));
    chosen = layout.take_array<ExpertChoice>(pairs);
    place = layout.take_array<std::int32_t>(pairs);
    order = layout.take_array<std::int32_t>(pairs);
    tile_rows = kIsGrouped                 ? kGroupedRows
                : num_rows <= kMaxFlatRows ? FlatProduct::kRows
                                           : SquareProduct::kRows;
    // Every expert may have a tile that is not full.
    max_tiles =
        static_cast<int>(pairs) / tile_rows + std::min(static_cast<int>(pairs), sizes.num_experts);
    tiles = layout.take_array<ExpertTile>(static_cast<std::size_t>(max_tiles));
    num_tiles = layout.take_array<std::int32_t>(1);
    inner_stride = kIsGrouped ? sizes.inner : 2 * sizes.inner;
    inner = layout.take_array<Bf16>(pairs * static_cast<std::size_t>(inner_stride));
    out = layout.take_array<Bf16>(pairs * static_cast<std::size_t>(sizes.dim));
  }

  Bf16* logits;
  ExpertChoice* chosen;  // by pair; a row's by their experts' indices
  std::int32_t* place;   // of a pair among the sorted ones
  std::int32_t* order;   // the pair at each place
  ExpertTile* tiles;
  std::int32_t* num_tiles;
  Bf16* inner;  // [pairs, inner_stride], sorted; if kIsGrouped: gated
  Bf16* out;    // [pairs, dim], sorted
  int inner_stride;
  int tile_rows, max_tiles;
};

// One warp per row.
__global__ void __launch_bounds__(kChooseWarps* kWarp)
    choose_kernel(const Bf16* logits, int num_rows, int num_experts, int count,
                  ExpertChoice* chosen) {
  let_successor_start();
  wait_for_predecessor();
  const int lane = threadIdx.x % kWarp;
  const std::int64_t row = std::int64_t{blockIdx.x} * kChooseWarps + threadIdx.x / kWarp;
  if (row >= num_rows) return;
  const ExpertChoice own = choose_experts(logits + row * num_experts, num_experts, count);
  int before = 0;
  for (int k = 0; k < count; ++k) {
    before += __shfl_sync(kFullWarp, own.expert, k) < own.expert ? 1 : 0;
  }
  if (lane < count) chosen[row * count + before] = own;
}

// Of the lanes below this one; `all`: what all of them come to.
__device__ __forceinline__ int sum_before(int value, int& all) {
  const int before = sum_of_lower_lanes(value);
  all = __shfl_sync(kFullWarp, before + value, kWarp - 1);
  return before;
}

// One warp: tiles from how many pairs each expert has, which become the places of their first ones.
__device__ __forceinline__ void make_tiles(const Scratch& s, int num_experts, int* counts) {
  int first = 0, num_tiles = 0;
  for (int base = 0; base < num_experts; base += kWarp) {
    const int e = base + static_cast<int>(threadIdx.x);
    const int count = e < num_experts ? counts[e] : 0;
    // Tiles of nearly equal size.
    const int wanted = (count + s.tile_rows - 1) / s.tile_rows;
    const int rows = wanted > 0 ? (count + wanted - 1) / wanted : 0;
    // Equal parts may need fewer tiles than full ones.
    const int own = rows > 0 ? (count + rows - 1) / rows : 0;
    int all_pairs, all_tiles;
    const int own_first = first + sum_before(count, all_pairs);
    const int tile = num_tiles + sum_before(own, all_tiles);
    for (int i = 0; i < own; ++i) {
      s.tiles[tile + i] = {e, own_first + i * rows, min(rows, count - i * rows)};
    }
    if (e < num_experts) counts[e] = own_first;
    first += all_pairs;
    num_tiles += all_tiles;
  }
  if (threadIdx.x == 0) *s.num_tiles = num_tiles;
}

// One block.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(Scratch s, int num_pairs, int num_experts) {
  __shared__ int next[kMaxExperts];
  let_successor_start();
  wait_for_predecessor();
  for (int e = threadIdx.x; e < num_experts; e += kSortThreads) next[e] = 0;
  __syncthreads();
  for (int pair = threadIdx.x; pair < num_pairs; pair += kSortThreads) {
    atomicAdd(&next[s.chosen[pair].expert], 1);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) make_tiles(s, num_experts, next);
  __syncthreads();
  for (int pair = threadIdx.x; pair < num_pairs; pair += kSortThreads) {
    const int place = atomicAdd(&next[s.chosen[pair].expert], 1);
    s.place[pair] = place;
    s.order[place] = pair;
  }
}

struct ProductParams {
  const Bf16*
      x;  // row r of the sorted pairs is x[pairs_per_row > 0 ? order[r] / pairs_per_row : r]
  std::int64_t x_stride;
  const std::int32_t* order;
  int pairs_per_row;
  const char* weights;  // [experts, out, in], rows 2 * in bytes apart
  const float* scales;  // [experts, out]; nullptr: weights are T
  int in, out;
  Bf16* y;  // [pairs, out]
  const ExpertTile* tiles;
  const std::int32_t* num_tiles;
};

// Where 16 bytes of a row of a tile in shared memory lie: rows next to each other begin in different halves, so
// that lanes 0 to 7, which read 64 bytes each of two rows, meet every bank once.
__device__ int swizzled(int row, int vector) {
  return (vector ^ (row % 2 * (kSliceColumns / kVector / 2))) * kVector;
}

// The same of weights, which may be smaller: 64 or 32 bytes each of two rows or of four.
template <typename Weights>
__device__ int swizzled_bytes(int row, int byte) {
  constexpr int kRowBytes = kSliceColumns * Weights::kElementBytes;
  return byte ^ (row / (128 / kRowBytes) % 2 * (kRowBytes / 2));
}

// Blocks: x = columns, y = tile.
template <typename Weights, typename Shape>
__global__ void __launch_bounds__(kBlockWarps* kWarp) product_kernel(ProductParams p) {
  constexpr int kBlockRows = Shape::kRows, kBuffers = Shape::kBuffers;
  constexpr int kThreads = kBlockWarps * kWarp;
  constexpr int kPieces = kSliceColumns / kVector;  // of a row
  __shared__ alignas(16) Bf16 x_tile[kBuffers][kBlockRows][kSliceColumns];
  constexpr int kRowBytes = kSliceColumns * Weights::kElementBytes;
  __shared__ alignas(16) char w_tile[kBuffers][kBlockColumns][kRowBytes];
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
  const std::int64_t row_bytes = std::int64_t{2} * p.in;
  const char* weights = p.weights + tile.expert * p.out * row_bytes;

  const auto load = [&](int buffer, int begin) {
    for (int i = threadIdx.x; i < kBlockRows * kPieces; i += kThreads) {
      const int r = i / kPieces, at = begin + i % kPieces * kVector;
      const bool valid = r < tile.count && at < p.in;
      copy_async_16(shared_address(&x_tile[buffer][r][swizzled(r, i % kPieces)]),
                    valid ? p.x + x_rows[r] * p.x_stride + at : p.x, valid);
    }
    constexpr int kCopies = kRowBytes / 16;  // of a row
    for (int i = threadIdx.x; i < kBlockColumns * kCopies; i += kThreads) {
      const int c = i / kCopies, at = i % kCopies * 16;
      const int from = begin * Weights::kElementBytes + at;
      const bool valid = first_column + c < p.out && from < p.in * Weights::kElementBytes;
      copy_async_16(shared_address(&w_tile[buffer][c][swizzled_bytes<Weights>(c, at)]),
                    valid ? weights + (first_column + c) * row_bytes + from : weights, valid);
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
        const int at = swizzled_bytes<Weights>(row, vector * kVector * Weights::kElementBytes);
        return Weights::widen(
            *reinterpret_cast<const typename Weights::Raw*>(&w_tile[buffer][row][at]));
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
      const int own_column = first_column + warp * 16 + half * 8 + lane_row;
      float own[2] = {totals[part][half * 2], totals[part][half * 2 + 1]};
      if (p.scales != nullptr && own_column < p.out) {
        const float scale = p.scales[std::int64_t{tile.expert} * p.out + own_column];
        own[0] *= scale, own[1] *= scale;
      }
      const float other = __shfl_xor_sync(kFullWarp, is_odd ? own[0] : own[1], 4);
      const int row = part * 8 + lane % 4 * 2 + (is_odd ? 1 : 0);
      const int column = first_column + warp * 16 + half * 8 + lane_row / 2 * 2;
      if (row >= tile.count || column >= p.out) continue;
      *reinterpret_cast<std::uint32_t*>(p.y + std::int64_t{tile.first + row} * p.out + column) =
          is_odd ? pack_bf16x2(other, own[1]) : pack_bf16x2(own[0], other);
    }
  }
}

// Blocks: x = row.
__global__ void add_kernel(ExpertsParams p, Scratch s) {
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int dim = p.ff.up.in, count = p.ff.experts_per_token;
  const ExpertChoice* chosen = s.chosen + row * count;
  const std::int32_t* place = s.place + row * count;
  for (int at = threadIdx.x * kVector; at < dim; at += blockDim.x * kVector) {
    float sum[kVector] = {}, values[kVector];
    for (int k = 0; k < count; ++k) {
      load_vector(s.out + std::int64_t{place[k]} * dim + at, values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[i] = fmaf(chosen[k].weight, values[i], sum[i]);
    }
    load_vector(static_cast<const Bf16*>(p.residual) + row * dim + at, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += values[i];
    store_vector(static_cast<Bf16*>(p.y) + row * dim + at, sum);
  }
}

template <typename Shape>
Status launch_product(Stream& stream, const ProductParams& params, int max_tiles) {
  const LaunchShape shape{
      .grid = dim3(blocks_for(params.out, kBlockColumns), static_cast<unsigned>(max_tiles)),
      .block = dim3(kBlockWarps * kWarp)};
  return params.scales == nullptr
             ? launch("experts product", stream, shape, product_kernel<NativeExperts, Shape>,
                      params)
             : launch("experts product", stream, shape, product_kernel<Fp8Experts, Shape>, params);
}

Status product(Stream& stream, const LinearWeights& weights, const ProductParams& params,
               const Scratch& s) {
  ProductParams p = params;
  p.weights = static_cast<const char*>(weights.weight);
  p.scales = weights.fp8_scales;
  p.in = weights.in, p.out = weights.out;
  return s.tile_rows == FlatProduct::kRows ? launch_product<FlatProduct>(stream, p, s.max_tiles)
                                           : launch_product<SquareProduct>(stream, p, s.max_tiles);
}

// A template, so that it is compiled where it is called: on other paths its kernels do not exist.
template <typename S>
Status multiply_sorted_by_warpgroups(Stream& stream, const FeedForward& ff, const Bf16* x,
                                     const S& s) {
  GroupedProduct up = {.x = x,
                       .x_stride = ff.up.in,
                       .order = s.order,
                       .pairs_per_row = ff.experts_per_token,
                       .weights = static_cast<const char*>(ff.up.weight),
                       .scales = ff.up.fp8_scales,
                       .num_experts = ff.num_experts,
                       .in = ff.up.in,
                       .out = ff.up.out,
                       .y = s.inner,
                       .y_stride = s.inner_stride,
                       .tiles = s.tiles,
                       .num_tiles = s.num_tiles,
                       .activation = ff.activation,
                       .up_offset = ff.up_offset};
  GAPLESS_RETURN_IF_ERROR(multiply_grouped_and_gate(stream, up, s.max_tiles));
  GroupedProduct down = up;
  down.x = s.inner;
  down.x_stride = s.inner_stride;
  down.pairs_per_row = 0;
  down.weights = static_cast<const char*>(ff.down.weight);
  down.scales = ff.down.fp8_scales;
  down.in = ff.down.in, down.out = ff.down.out;
  down.y = s.out;
  down.y_stride = ff.down.out;
  return multiply_grouped(stream, down, s.max_tiles);
}

// Chooses, sorts and multiplies: all that does not need the residual.
Status multiply_sorted(Stream& stream, const ExpertsParams& params, const Scratch& s) {
  const FeedForward& ff = params.ff;
  const int pairs = params.num_rows * ff.experts_per_token;
  GAPLESS_RETURN_IF_ERROR(launch("experts choose", stream,
                                 {.grid = dim3(blocks_for(params.num_rows, kChooseWarps)),
                                  .block = dim3(kChooseWarps * kWarp)},
                                 choose_kernel, static_cast<const Bf16*>(params.logits),
                                 params.num_rows, ff.num_experts, ff.experts_per_token, s.chosen));
  GAPLESS_RETURN_IF_ERROR(launch("experts sort", stream,
                                 {.grid = dim3(pairs > 0 ? 1 : 0), .block = dim3(kSortThreads)},
                                 sort_kernel, s, pairs, ff.num_experts));
  if constexpr (kIsGrouped) {
    return multiply_sorted_by_warpgroups(stream, ff, static_cast<const Bf16*>(params.x), s);
  }
  ProductParams p = {};
  p.x = static_cast<const Bf16*>(params.x);
  p.x_stride = ff.up.in;
  p.order = s.order;
  p.pairs_per_row = ff.experts_per_token;
  p.y = s.inner;
  p.tiles = s.tiles;
  p.num_tiles = s.num_tiles;
  GAPLESS_RETURN_IF_ERROR(product(stream, ff.up, p, s));
  GAPLESS_RETURN_IF_ERROR(gate(stream, {.x = s.inner,
                                        .x_stride = ff.up.out,
                                        .y = s.inner,
                                        .y_stride = ff.up.out,
                                        .num_rows = pairs,
                                        .dim = ff.inner(),
                                        .activation = ff.activation,
                                        .up_offset = ff.up_offset}));
  p.x = s.inner;
  p.x_stride = ff.up.out;
  p.pairs_per_row = 0;
  p.y = s.out;
  return product(stream, ff.down, p, s);
}

}  // namespace

std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) {
  // Few rows have more tiles than their share, and fewer still have gates and ups.
  std::size_t bytes = 0;
  for (const int rows : {max_rows, kMaxFlatRows, kMaxFewRows}) {
    BumpLayout layout;
    Scratch(layout, std::min(max_rows, rows), sizes);
    bytes = std::max(bytes, layout.peak_bytes());
  }
  return bytes;
}

Status experts(Stream& stream, const ExpertsParams& params) {
  const FeedForward& ff = params.ff;
  if (ff.num_experts > kMaxExperts || ff.experts_per_token > kMaxExpertsPerToken ||
      ff.up.in % kVector != 0 || ff.inner() % kVector != 0) {
    return invalid_argument(
        "experts: {} of {} with widths {} and {}; at most {} of {}, widths in 8s",
        ff.experts_per_token, ff.num_experts, ff.up.in, ff.inner(), kMaxExpertsPerToken,
        kMaxExperts);
  }
  if (ff.up.fp8_scales != nullptr && (ff.up.in % 16 != 0 || ff.inner() % 16 != 0)) {
    return invalid_argument("experts in 8 bits: widths {} and {}, not in 16s", ff.up.in,
                            ff.inner());
  }
  const ExpertSizes sizes = expert_sizes(ff);
  BumpLayout layout(params.scratch);
  const Scratch s(layout, params.num_rows, sizes);
  if constexpr (!kIsGrouped) {
    if (params.num_rows <= kMaxFewRows) return few_row_experts(stream, params, s.inner);
  }
  if (params.half != ExpertsHalf::kSecond) {
    GAPLESS_RETURN_IF_ERROR(multiply_sorted(stream, params, s));
  }
  if (params.half == ExpertsHalf::kFirst) return ok_status();
  constexpr unsigned kAddThreads = 256;
  return launch("experts add", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kAddThreads)},
                add_kernel, params, s);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
