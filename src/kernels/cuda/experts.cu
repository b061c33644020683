// Experts (ExpertsParams) as five launches behind the router's product: choose, sort, up, gate, down and add.
//
// A pair is a row and one of its experts; pair number row * experts_per_token + i is the row's i-th
// choice. Pairs are sorted by expert, so that a tile of a product has rows of one expert alone. In
// which order pairs of one expert lie is left to chance (atomics); no result depends on it, because an
// output's sum runs along k in one order wherever in a tile its row is.
#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "device/bump_layout.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/dense_ops.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kTileRows = 64, kTileColumns = 64, kTileDepth = 64;
constexpr int kProductWarps = 4;    // 16 columns each
constexpr int kRowPadding = 8;      // elements: neighbouring rows lie in other banks
constexpr int kSortThreads = 1024;  // of one block
constexpr int kChooseWarps = 4;     // a row each

struct Choice {
  std::int32_t expert;
  float weight;
};

// Rows [first, first + count) of the sorted pairs.
struct Tile {
  std::int32_t expert, first, count;
};

// Where the arrays lie in scratch. The router's logits come first: who calls experts() puts them there.
struct Scratch {
  Scratch(BumpLayout& layout, int num_rows, const ExpertSizes& sizes) {
    const auto rows = static_cast<std::size_t>(num_rows);
    const std::size_t pairs = rows * static_cast<std::size_t>(sizes.experts_per_token);
    logits = layout.take_array<Bf16>(rows * static_cast<std::size_t>(sizes.num_experts));
    chosen = layout.take_array<Choice>(pairs);
    place = layout.take_array<std::int32_t>(pairs);
    order = layout.take_array<std::int32_t>(pairs);
    tiles = layout.take_array<Tile>(
        static_cast<std::size_t>(max_tiles(static_cast<std::int64_t>(pairs), sizes.num_experts)));
    num_tiles = layout.take_array<std::int32_t>(1);
    inner = layout.take_array<Bf16>(pairs * 2 * static_cast<std::size_t>(sizes.inner));
    out = layout.take_array<Bf16>(pairs * static_cast<std::size_t>(sizes.dim));
  }
  // Every expert may have a tile that is not full.
  static std::int64_t max_tiles(std::int64_t pairs, int num_experts) {
    return pairs / kTileRows + std::min<std::int64_t>(pairs, num_experts);
  }

  Bf16* logits;
  Choice* chosen;       // by pair
  std::int32_t* place;  // of a pair among the sorted ones
  std::int32_t* order;  // the pair at each place
  Tile* tiles;
  std::int32_t* num_tiles;
  Bf16* inner;  // [pairs, 2 * inner], sorted
  Bf16* out;    // [pairs, dim], sorted
};

struct Candidate {
  float logit;
  int expert;  // kMaxExperts: none
};

__device__ Candidate better(Candidate a, Candidate b) {
  if (a.expert == kMaxExperts) return b;
  const bool is_b = b.logit > a.logit || (b.logit == a.logit && b.expert < a.expert);
  return b.expert != kMaxExperts && is_b ? b : a;
}

// One warp per row; lane l looks at experts l, l + 32, ... What is not a number counts as the smallest.
__global__ void __launch_bounds__(kChooseWarps* kWarp)
    choose_kernel(const Bf16* logits, int num_rows, int num_experts, int count, Choice* chosen) {
  constexpr int kPerLane = kMaxExperts / kWarp;
  let_successor_start();
  wait_for_predecessor();
  const int lane = threadIdx.x % kWarp;
  const std::int64_t row = std::int64_t{blockIdx.x} * kChooseWarps + threadIdx.x / kWarp;
  if (row >= num_rows) return;
  float own[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarp + lane;
    own[i] = expert < num_experts ? __bfloat162float(logits[row * num_experts + expert]) : 0.0f;
    if (isnan(own[i])) own[i] = -INFINITY;
  }
  unsigned taken = 0;  // of own
  float largest = 0, sum = 0;
  float weights[kMaxExpertsPerToken];
  for (int k = 0; k < count; ++k) {
    Candidate best{0, kMaxExperts};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = i * kWarp + lane;
      const bool is_free = expert < num_experts && (taken >> i & 1u) == 0;
      best = better(best, {own[i], is_free ? expert : kMaxExperts});
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      best = better(best, {__shfl_xor_sync(kFullWarp, best.logit, offset),
                           __shfl_xor_sync(kFullWarp, best.expert, offset)});
    }
    if (best.expert % kWarp == lane) taken |= 1u << (best.expert / kWarp);
    if (k == 0) largest = best.logit;
    weights[k] = expf(best.logit - largest);
    sum += weights[k];
    if (lane == 0) chosen[row * count + k].expert = best.expert;
  }
  if (lane != 0) return;
  for (int k = 0; k < count; ++k) chosen[row * count + k].weight = round_to_bf16(weights[k] / sum);
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
  if (threadIdx.x == 0) {
    int first = 0, num_tiles = 0;
    for (int e = 0; e < num_experts; ++e) {
      const int count = next[e];
      for (int at = 0; at < count; at += kTileRows) {
        s.tiles[num_tiles++] = {e, first + at, min(kTileRows, count - at)};
      }
      next[e] = first;
      first += count;
    }
    *s.num_tiles = num_tiles;
  }
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
  const Bf16* weights;  // [experts, out, in]
  int in, out;
  Bf16* y;  // [pairs, out]
  const Tile* tiles;
  const std::int32_t* num_tiles;
};

// Blocks: x = columns, y = tile.
__global__ void __launch_bounds__(kProductWarps* kWarp) product_kernel(ProductParams p) {
  constexpr int kStride = kTileDepth + kRowPadding, kThreads = kProductWarps * kWarp;
  constexpr int kPieces = kTileDepth / kVector;  // of a row
  __shared__ alignas(16) Bf16 x_tile[2][kTileRows][kStride];
  __shared__ alignas(16) Bf16 w_tile[2][kTileColumns][kStride];
  __shared__ std::int64_t x_rows[kTileRows];
  let_successor_start();
  wait_for_predecessor();
  if (blockIdx.y >= *p.num_tiles) return;
  const Tile tile = p.tiles[blockIdx.y];
  const int first_column = blockIdx.x * kTileColumns;
  for (int r = threadIdx.x; r < tile.count; r += kThreads) {
    const int place = tile.first + r;
    x_rows[r] = p.pairs_per_row > 0 ? p.order[place] / p.pairs_per_row : place;
  }
  __syncthreads();
  const Bf16* weights = p.weights + std::int64_t{tile.expert} * p.out * p.in;

  const auto load = [&](int step) {
    const int buffer = step % 2, begin = step * kTileDepth;
    for (int i = threadIdx.x; i < kTileRows * kPieces; i += kThreads) {
      const int r = i / kPieces, at = begin + i % kPieces * kVector;
      const bool valid = r < tile.count && at < p.in;
      copy_async_16(shared_address(&x_tile[buffer][r][i % kPieces * kVector]),
                    valid ? p.x + x_rows[r] * p.x_stride + at : p.x, valid);
    }
    for (int i = threadIdx.x; i < kTileColumns * kPieces; i += kThreads) {
      const int c = i / kPieces, at = begin + i % kPieces * kVector;
      const bool valid = first_column + c < p.out && at < p.in;
      copy_async_16(shared_address(&w_tile[buffer][c][i % kPieces * kVector]),
                    valid ? weights + std::int64_t{first_column + c} * p.in + at : weights, valid);
    }
    commit_async_copies();
  };

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int num_parts = (tile.count + 15) / 16;  // of 16 rows
  float sums[kTileRows / 16][2][4] = {};
  const int num_steps = (p.in + kTileDepth - 1) / kTileDepth;
  load(0);
  for (int step = 0; step < num_steps; ++step) {
    if (step + 1 < num_steps) {
      load(step + 1);
      wait_async_copies<1>();
    } else {
      wait_async_copies<0>();
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileDepth; k += 16) {
      std::uint32_t b[4];
      ldmatrix_x4(
          b, shared_address(
                 &w_tile[step % 2][warp * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]));
#pragma unroll
      for (int part = 0; part < kTileRows / 16; ++part) {
        if (part >= num_parts) continue;
        std::uint32_t a[4];
        ldmatrix_x4(a, shared_address(&x_tile[step % 2][part * 16 + lane % 16][k + lane / 16 * 8]));
        mma_k16(sums[part][0], a, b[0], b[1]);
        mma_k16(sums[part][1], a, b[2], b[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int part = 0; part < kTileRows / 16; ++part) {
#pragma unroll
    for (int half = 0; half < 4; ++half) {  // rows l/4 and l/4 + 8, of both columns' fragments
      const int row = part * 16 + lane / 4 + half % 2 * 8;
      const int column = first_column + warp * 16 + half / 2 * 8 + lane % 4 * 2;
      if (row >= tile.count || column >= p.out) continue;
      const float* values = &sums[part][half / 2][half % 2 * 2];
      *reinterpret_cast<std::uint32_t*>(p.y + std::int64_t{tile.first + row} * p.out + column) =
          pack_bf16x2(values[0], values[1]);
    }
  }
}

// Blocks: x = row.
__global__ void add_kernel(ExpertsParams p, Scratch s) {
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int dim = p.ff.up.in, count = p.ff.experts_per_token;
  const Choice* chosen = s.chosen + row * count;
  const std::int32_t* place = s.place + row * count;
  for (int at = threadIdx.x * kVector; at < dim; at += blockDim.x * kVector) {
    float sum[kVector] = {}, values[kVector];
    for (int k = 0; k < count; ++k) {
      load_vector(s.out + std::int64_t{place[k]} * dim + at, values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[i] += chosen[k].weight * values[i];
    }
    load_vector(static_cast<const Bf16*>(p.residual) + row * dim + at, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += values[i];
    store_vector(static_cast<Bf16*>(p.y) + row * dim + at, sum);
  }
}

Status product(Stream& stream, const LinearWeights& weights, const ProductParams& params,
               std::int64_t max_tiles) {
  ProductParams p = params;
  p.weights = static_cast<const Bf16*>(weights.weight);
  p.in = weights.in, p.out = weights.out;
  return launch(
      "experts product", stream,
      {.grid = dim3(blocks_for(weights.out, kTileColumns), static_cast<unsigned>(max_tiles)),
       .block = dim3(kProductWarps * kWarp)},
      product_kernel, p);
}

}  // namespace

std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) {
  BumpLayout layout;
  Scratch(layout, max_rows, sizes);
  return layout.peak_bytes();
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
  const ExpertSizes sizes = expert_sizes(ff);
  BumpLayout layout(params.scratch);
  const Scratch s(layout, params.num_rows, sizes);
  const int pairs = params.num_rows * ff.experts_per_token;
  const std::int64_t max_tiles = Scratch::max_tiles(pairs, ff.num_experts);
  GAPLESS_RETURN_IF_ERROR(launch("experts choose", stream,
                                 {.grid = dim3(blocks_for(params.num_rows, kChooseWarps)),
                                  .block = dim3(kChooseWarps * kWarp)},
                                 choose_kernel, s.logits, params.num_rows, ff.num_experts,
                                 ff.experts_per_token, s.chosen));
  GAPLESS_RETURN_IF_ERROR(launch("experts sort", stream,
                                 {.grid = dim3(pairs > 0 ? 1 : 0), .block = dim3(kSortThreads)},
                                 sort_kernel, s, pairs, ff.num_experts));
  ProductParams p = {};
  p.x = static_cast<const Bf16*>(params.x);
  p.x_stride = ff.up.in;
  p.order = s.order;
  p.pairs_per_row = ff.experts_per_token;
  p.y = s.inner;
  p.tiles = s.tiles;
  p.num_tiles = s.num_tiles;
  GAPLESS_RETURN_IF_ERROR(product(stream, ff.up, p, max_tiles));
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
  GAPLESS_RETURN_IF_ERROR(product(stream, ff.down, p, max_tiles));
  constexpr unsigned kAddThreads = 256;
  return launch("experts add", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kAddThreads)},
                add_kernel, params, s);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
