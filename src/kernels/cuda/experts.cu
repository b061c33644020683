// Experts (ExpertsParams), as six launches behind the router's product: choose, sort, up, gate, down and add. Where there are
// warpgroups they make the products, of any number of rows (grouped_experts.h), the first of them with its gates; of rows in 8 bits
// a launch between the two rounds what the first left. Elsewhere few rows
// are few_row_experts.cu's. A prefill's router is launched here, too; its first half is all up to sorting, a decode step's all up to down.
//
// A pair is a row and one of its experts; pair number row * experts_per_token + i is the row's i-th
// choice. Pairs are sorted by expert, so that a tile of a product has rows of one expert alone. In
// which order pairs of one expert lie is left to chance (atomics); no result depends on it, because an
// output's sum runs along k in one order (of warps: expert_product.cuh) wherever in a tile its row is. A row's experts are added up
// by their indices, as where rows are few.
#include <algorithm>

#include "base/limits.h"
#include "device/bump_layout.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/expert_choice.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/few_row_experts.h"
#include "kernels/cuda/grouped_experts.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/split_product.h"
#include "kernels/cuda/warp_experts.h"
#include "kernels/dense_ops.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kSortThreads = 1024;  // of one block
constexpr int kChooseWarps = 4;     // a row each
constexpr int kAddThreads = 256;

// Whether warpgroups multiply, however many rows there are.
constexpr bool kIsGrouped = kPath.has_warpgroups;

// Where the arrays lie in scratch. Logits come first: a decode step's lie there, unless they lie elsewhere.
struct Scratch {
  Scratch(BumpLayout& layout, int num_rows, const ExpertSizes& sizes) {
    const auto rows = static_cast<std::size_t>(num_rows);
    const std::size_t pairs = rows * static_cast<std::size_t>(sizes.experts_per_token);
    logits = layout.take_array<Bf16>(rows * static_cast<std::size_t>(sizes.num_experts));
    const auto num_parts =
        static_cast<std::size_t>(num_split_parts(sizes.dim, SplitShape::kManyRows));
    logit_parts =
        layout.take_array<float>(rows * num_parts * static_cast<std::size_t>(sizes.num_experts));
    chosen = layout.take_array<ExpertChoice>(pairs);
    place = layout.take_array<std::int32_t>(pairs);
    order = layout.take_array<std::int32_t>(pairs);
    tile_rows = kIsGrouped ? kGroupedRows : warp_tile_rows(num_rows);
    // Every expert may have a tile that is not full.
    max_tiles =
        static_cast<int>(pairs) / tile_rows + std::min(static_cast<int>(pairs), sizes.num_experts);
    tiles = layout.take_array<ExpertTile>(static_cast<std::size_t>(max_tiles));
    num_tiles = layout.take_array<std::int32_t>(1);
    num_stored = layout.take_array<std::int32_t>(static_cast<std::size_t>(max_tiles));
    inner_stride = kIsGrouped ? sizes.inner : 2 * sizes.inner;
    inner = layout.take_array<Bf16>(pairs * static_cast<std::size_t>(inner_stride));
    inner_scales = layout.take_array<float>(kIsGrouped ? pairs : 0);
    out = layout.take_array<Bf16>(pairs * static_cast<std::size_t>(sizes.dim));
  }

  Bf16* logits;
  float* logit_parts;
  ExpertChoice* chosen;  // by pair; a row's by their experts' indices
  std::int32_t* place;   // of a pair among the sorted ones
  std::int32_t* order;   // the pair at each place
  ExpertTile* tiles;
  std::int32_t* num_tiles;
  std::int32_t* num_stored;  // SortedProduct's
  Bf16* inner;               // [pairs, inner_stride], sorted; if kIsGrouped: gated
  float* inner_scales;       // of `inner` while it is in 8 bits
  Bf16* out;                 // [pairs, dim], sorted
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

// One warp: tiles from how many pairs each expert has, which become the places of their first ones. Tiles of many rows come first:
// what is left for the last round of blocks is small.
__device__ __forceinline__ void make_tiles(const Scratch& s, int num_experts, int* counts) {
  constexpr int kSizes = 4;  // quarters of a full tile
  int num_tiles = 0;
  for (int size = kSizes; size > 0; --size) {
    int first = 0;
    for (int base = 0; base < num_experts; base += kWarp) {
      const int e = base + static_cast<int>(threadIdx.x);
      const int count = e < num_experts ? counts[e] : 0;
      // Tiles of nearly equal size.
      const int wanted = (count + s.tile_rows - 1) / s.tile_rows;
      const int rows = wanted > 0 ? (count + wanted - 1) / wanted : 0;
      const bool has_size = (rows * kSizes + s.tile_rows - 1) / s.tile_rows == size;
      // Equal parts may need fewer tiles than full ones.
      const int own = has_size ? (count + rows - 1) / rows : 0;
      int all_pairs, all_tiles;
      const int own_first = first + sum_before(count, all_pairs);
      const int tile = num_tiles + sum_before(own, all_tiles);
      for (int i = 0; i < own; ++i) {
        s.tiles[tile + i] = {e, own_first + i * rows, min(rows, count - i * rows)};
      }
      if (size == 1 && e < num_experts) counts[e] = own_first;
      first += all_pairs;
      num_tiles += all_tiles;
    }
  }
  if (threadIdx.x == 0) *s.num_tiles = num_tiles;
}

// The thread's pairs of one block, kSortBatch at a time: what is read of a batch's pairs is on its way together.
template <typename Read, typename Use>
__device__ __forceinline__ void for_each_pair(int num_pairs, const Read& read, const Use& use) {
  constexpr int kSortBatch = 8;
  for (int base = threadIdx.x; base < num_pairs; base += kSortThreads * kSortBatch) {
    decltype(read(0)) values[kSortBatch];
#pragma unroll
    for (int i = 0; i < kSortBatch; ++i) {
      const int pair = base + i * kSortThreads;
      if (pair < num_pairs) values[i] = read(pair);
    }
#pragma unroll
    for (int i = 0; i < kSortBatch; ++i) {
      const int pair = base + i * kSortThreads;
      if (pair < num_pairs) use(pair, values[i]);
    }
  }
}

// One block.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(Scratch s, int num_pairs, int num_experts) {
  __shared__ int counts[kMaxExperts];  // then the places of experts' first pairs
  let_successor_start();
  wait_for_predecessor();
  for (int e = threadIdx.x; e < num_experts; e += kSortThreads) counts[e] = 0;
  for (int t = threadIdx.x; t < s.max_tiles; t += kSortThreads) s.num_stored[t] = 0;
  __syncthreads();
  for_each_pair(
      num_pairs, [&](int pair) { return s.chosen[pair].expert; },
      [&](int pair, int expert) { s.place[pair] = atomicAdd(&counts[expert], 1); });
  __syncthreads();
  if (threadIdx.x < kWarp) make_tiles(s, num_experts, counts);
  __syncthreads();
  for_each_pair(
      num_pairs,
      [&](int pair) {
        return int2{s.chosen[pair].expert, s.place[pair]};
      },
      [&](int pair, int2 of_expert) {
        const int place = counts[of_expert.x] + of_expert.y;
        s.place[pair] = place;
        s.order[place] = pair;
      });
}

// Of add_kernel on a multiprocessor. Where a block reads its choices late, four would keep them in memory.
constexpr int kAddBlocks = kIsGrouped ? 4 : 3;

// Blocks: x = row. A row's outputs are on their way together, kAddBatch at a time.
__global__ void __launch_bounds__(kAddThreads, kAddBlocks) add_kernel(ExpertsParams p, Scratch s) {
  constexpr int kAddBatch = 8;
  const std::int64_t row = blockIdx.x;
  const int dim = p.ff.up.in, count = p.ff.experts_per_token;
  const ExpertChoice* chosen = s.chosen + row * count;
  const std::int32_t* place = s.place + row * count;
  float weights[kAddBatch];
  int places[kAddBatch];
  const auto read_choices = [&](int base) {
#pragma unroll
    for (int k = 0; k < kAddBatch; ++k) {
      if (base + k >= count) break;
      weights[k] = chosen[base + k].weight;
      places[k] = place[base + k];
    }
  };
  let_successor_start();
  // Behind warpgroups' products they are there: the first of those waited before it let the second start.
  if constexpr (kIsGrouped) read_choices(0);
  wait_for_predecessor();
  const auto* residual = static_cast<const Bf16*>(p.residual) + row * dim;
  for (int at = threadIdx.x * kVector; at < dim; at += kAddThreads * kVector) {
    const uint4 raw_residual = *reinterpret_cast<const uint4*>(residual + at);
    float sum[kVector] = {}, values[kVector];
    for (int base = 0; base < count; base += kAddBatch) {
      if (!kIsGrouped || count > kAddBatch) read_choices(base);
      uint4 outputs[kAddBatch];
#pragma unroll
      for (int k = 0; k < kAddBatch; ++k) {
        if (base + k >= count) break;
        outputs[k] = *reinterpret_cast<const uint4*>(s.out + std::int64_t{places[k]} * dim + at);
      }
#pragma unroll
      for (int k = 0; k < kAddBatch; ++k) {
        if (base + k >= count) break;
        unpack(outputs[k], values);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] = fmaf(weights[k], values[i], sum[i]);
      }
    }
    unpack(raw_residual, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += values[i];
    store_vector(static_cast<Bf16*>(p.y) + row * dim + at, sum);
  }
}

SortedProduct up_product(const ExpertsParams& params, const Scratch& s) {
  const FeedForward& ff = params.ff;
  const bool is_fp8 = params.x_fp8 != nullptr;
  return {.x = is_fp8 ? params.x_fp8 : params.x,
          .x_stride = is_fp8 ? params.x_fp8_stride : ff.up.in,
          .order = s.order,
          .pairs_per_row = ff.experts_per_token,
          .x_scales = is_fp8 ? params.x_scales : nullptr,
          .weights = is_fp8 ? ff.up.fp8 : ff.up.weight,
          .scales = ff.up.fp8_scales,
          .num_experts = ff.num_experts,
          .in = ff.up.in,
          .out = ff.up.out,
          .y = s.inner,
          .y_stride = s.inner_stride,
          .tiles = s.tiles,
          .num_tiles = s.num_tiles,
          .num_stored = s.num_stored,
          .activation = ff.activation,
          .up_offset = ff.up_offset};
}

// Inner rows in 8 bits begin where they do in T.
constexpr int kFp8PerT = static_cast<int>(sizeof(Bf16));

SortedProduct down_product(const ExpertsParams& params, const Scratch& s) {
  const FeedForward& ff = params.ff;
  const bool is_fp8 = params.x_fp8 != nullptr;
  SortedProduct down = up_product(params, s);
  down.x = s.inner;
  down.x_stride = is_fp8 ? kFp8PerT * s.inner_stride : s.inner_stride;
  down.x_scales = is_fp8 ? s.inner_scales : nullptr;
  down.pairs_per_row = 0;
  down.weights = is_fp8 ? ff.down.fp8 : ff.down.weight;
  down.scales = ff.down.fp8_scales;
  down.in = ff.down.in, down.out = ff.down.out;
  down.y = s.out;
  down.y_stride = ff.down.out;
  return down;
}

// The products, by warpgroups or not. Templates, so that a path compiles only the one that it calls: the other's kernels do not exist there.
template <typename S>
Status multiply_sorted_by_warpgroups(Stream& stream, const ExpertsParams& params, const S& s) {
  const FeedForward& ff = params.ff;
  GAPLESS_RETURN_IF_ERROR(multiply_grouped_and_gate(stream, up_product(params, s), s.max_tiles));
  if (params.x_fp8 != nullptr) {
    GAPLESS_RETURN_IF_ERROR(rows_to_fp8(stream, {.x = s.inner,
                                                 .x_stride = s.inner_stride,
                                                 .y = s.inner,
                                                 .y_stride = kFp8PerT * s.inner_stride,
                                                 .scales = s.inner_scales,
                                                 .num_rows = params.num_rows * ff.experts_per_token,
                                                 .dim = ff.inner()}));
  }
  return multiply_grouped(stream, down_product(params, s), s.max_tiles);
}

template <typename S>
Status multiply_sorted_by_warps(Stream& stream, const ExpertsParams& params, const S& s) {
  const FeedForward& ff = params.ff;
  GAPLESS_RETURN_IF_ERROR(
      multiply_by_warps(stream, up_product(params, s), s.tile_rows, s.max_tiles));
  GAPLESS_RETURN_IF_ERROR(gate(stream, {.x = s.inner,
                                        .x_stride = ff.up.out,
                                        .y = s.inner,
                                        .y_stride = ff.up.out,
                                        .num_rows = params.num_rows * ff.experts_per_token,
                                        .dim = ff.inner(),
                                        .activation = ff.activation,
                                        .up_offset = ff.up_offset}));
  return multiply_by_warps(stream, down_product(params, s), s.tile_rows, s.max_tiles);
}

// Chooses and sorts.
template <typename S>
Status sort_rows(Stream& stream, const ExpertsParams& params, const S& s) {
  const FeedForward& ff = params.ff;
  const int pairs = params.num_rows * ff.experts_per_token;
  GAPLESS_RETURN_IF_ERROR(launch("experts choose", stream,
                                 {.grid = dim3(blocks_for(params.num_rows, kChooseWarps)),
                                  .block = dim3(kChooseWarps * kWarp)},
                                 choose_kernel, static_cast<const Bf16*>(params.logits),
                                 params.num_rows, ff.num_experts, ff.experts_per_token, s.chosen));
  return launch("experts sort", stream,
                {.grid = dim3(pairs > 0 ? 1 : 0), .block = dim3(kSortThreads)}, sort_kernel, s,
                pairs, ff.num_experts);
}

template <typename S>
Status multiply_sorted(Stream& stream, const ExpertsParams& params, const S& s) {
  if constexpr (kIsGrouped) {
    return multiply_sorted_by_warpgroups(stream, params, s);
  } else {
    return multiply_sorted_by_warps(stream, params, s);
  }
}

}  // namespace

std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) {
  // Few rows may have more tiles than many, and rows of few_row_experts.cu have gates and ups.
  std::size_t bytes = 0;
  for (const int rows : {max_rows, kMaxFlatRows, kMaxFewRows}) {
    BumpLayout layout;
    Scratch(layout, std::min(max_rows, rows), sizes);
    bytes = std::max(bytes, layout.peak_bytes());
  }
  return bytes;
}

Status experts(Stream& stream, const ExpertsParams& without_logits) {
  ExpertsParams params = without_logits;
  const FeedForward& ff = params.ff;
  if (ff.num_experts > kMaxExperts || ff.experts_per_token > kMaxExpertsPerToken ||
      ff.up.in % kVector != 0 || ff.inner() % kVector != 0) {
    return invalid_argument(
        "experts: {} of {} with widths {} and {}; at most {} of {}, widths in 8s",
        ff.experts_per_token, ff.num_experts, ff.up.in, ff.inner(), kMaxExpertsPerToken,
        kMaxExperts);
  }
  if (params.x_fp8 != nullptr) {
    if (!kIsGrouped || ff.up.fp8 == nullptr || ff.down.fp8 == nullptr) {
      return invalid_argument("experts in 8 bits: {}", kIsGrouped
                                                           ? "their weights have no copies"
                                                           : "this GPU has no such products");
    }
    if (ff.up.in % 16 != 0 || ff.inner() % 16 != 0 || params.x_fp8_stride % 16 != 0) {
      return invalid_argument("experts in 8 bits: widths {} and {}, rows {} apart, not in 16s",
                              ff.up.in, ff.inner(), params.x_fp8_stride);
    }
  }
  const ExpertSizes sizes = expert_sizes(ff);
  BumpLayout layout(params.scratch);
  const Scratch s(layout, params.num_rows, sizes);
  const bool is_first = params.half != ExpertsHalf::kSecond;
  const bool is_second = params.half != ExpertsHalf::kFirst;
  if (params.logits == nullptr) {
    params.logits = s.logits;
    // Not by a library's kernel: this may run beside one, and they share a workspace.
    LinearParams router{.x = params.x,
                        .x_stride = ff.router.in,
                        .weights = ff.router,
                        .y = s.logits,
                        .y_stride = ff.num_experts,
                        .num_rows = params.num_rows};
    if (is_first) GAPLESS_RETURN_IF_ERROR(split_linear(stream, router, s.logit_parts));
  }
  if constexpr (!kIsGrouped) {
    if (params.num_rows <= kMaxFewRows) return few_row_experts(stream, params, s.inner);
  }
  if (is_first) GAPLESS_RETURN_IF_ERROR(sort_rows(stream, params, s));
  // A decode step's products leave multiprocessors to what runs beside the first half, a prefill's do not.
  if (params.decode ? is_first : is_second) {
    GAPLESS_RETURN_IF_ERROR(multiply_sorted(stream, params, s));
  }
  if (!is_second) return ok_status();
  return launch("experts add", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kAddThreads)},
                add_kernel, params, s);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
