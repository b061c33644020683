// Products over experts of sorted rows, by warpgroups (grouped_experts.h).
//
//   item   = 64 rows for each warpgroup of an expert's matrix by one of its tiles, up to 128 rows of x. A block takes every
//            gridDim.x-th; the blocks of one tile follow each other, so that its rows of x are in the
//            second-level cache.
//   stage  = 128 bytes of columns of both, in a ring of shared memory that runs on from item to item.
//   block  = warpgroups that multiply 64 rows of the matrix each, as A, with all rows of x, as B, and four warps that
//            copy: one asks the copy engine for boxes of the matrix, two bring rows of x, which lie anywhere.
//
// Columns are added up as they lie, 32 bytes at a time, each output in one register from first to last. So an output's bits
// depend neither on the tile nor on the number of warpgroups.
//
// Both operands are T, or both are in 8 bits (e4m3) with a scale for each of their rows. A stage then has twice the columns; nothing
// else is different until the sums are there.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/fp8_conversion.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/wgmma_of_shared.cuh"
#include "kernels/cuda/expert_map.h"
#include "kernels/cuda/grouped_experts.h"
#include "kernels/cuda/launch.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kCopyWarps = 4;  // a warpgroup: one asks for boxes, two copy x
constexpr int kXWarps = 2;
constexpr int kXThreads = kXWarps * kWarp;
constexpr int kRowBytes = 128;                                // of a stage's columns
constexpr int kInstructionBytes = 32;                         // of these
constexpr int kInstructions = kRowBytes / kInstructionBytes;  // of a stage
constexpr int kPieceBytes = 16;                               // that are copied at once
constexpr int kGroupRows = 64;                                // of a warpgroup's A
constexpr int kXBytes = kGroupedRows * kRowBytes;
constexpr int kStageAlignment = 1024;   // of swizzled operands
constexpr int kStagingBytes = 8 << 10;  // of a warpgroup's outputs on their way to memory

// Registers of a thread: when the kernel starts, and of those that compute and copy from then on.
template <int kGroups>
struct GroupedRegisters;
template <>
struct GroupedRegisters<2> {
  static constexpr int kStart = 168, kCompute = 208, kCopy = 72;
};
template <>
struct GroupedRegisters<4> {
  static constexpr int kStart = 96, kCompute = 104, kCopy = 64;
};

// Of an operand's numbers.
template <typename Element>
constexpr bool kIsFp8 = sizeof(Element) == 1;
template <typename Element>
constexpr int kStageColumns = kRowBytes / static_cast<int>(sizeof(Element));

template <int kGroups>
struct GroupedLayout {
  static constexpr int kRows = kGroups * kGroupRows;  // of an item's part of the matrix
  static constexpr int kComputeWarps = kGroups * 4;
  static constexpr int kThreads = (kComputeWarps + kCopyWarps) * kWarp;
  using Registers = GroupedRegisters<kGroups>;
  static_assert(kComputeWarps * Registers::kCompute + kCopyWarps * Registers::kCopy <=
                (kComputeWarps + kCopyWarps) * Registers::kStart);
  static constexpr int kBoxBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kBoxBytes;
  // Where a warpgroup's outputs become whole rows.
  static constexpr int kStoreBytes = kGroups * kStagingBytes;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kStages =
      (kLargestSharedBytes - kStageAlignment - kStoreBytes - kBarrierBytes) / kStageBytes;
  static constexpr int kBytes =
      kStageAlignment + kStages * kStageBytes + kStoreBytes + kBarrierBytes;
  static_assert(kStages * 2 * 8 <= kBarrierBytes && kStageBytes % kStageAlignment == 0);
};

// The ring: barriers, and where its stages are.
template <typename Layout>
class GroupedRing {
 public:
  __device__ explicit GroupedRing(std::uint32_t shared)
      : stages_((shared + kStageAlignment - 1) / kStageAlignment * kStageAlignment),
        barriers_(stages_ + Layout::kStages * Layout::kStageBytes + Layout::kStoreBytes) {}

  __device__ void init() const {
    for (int i = 0; i < Layout::kStages; ++i) {
      init_barrier(full(i), 1 + kXWarps);
      init_barrier(empty(i), Layout::kComputeWarps);
    }
  }
  __device__ std::uint32_t x(int stage) const { return stages_ + stage * Layout::kStageBytes; }
  __device__ std::uint32_t weights(int stage) const { return x(stage) + kXBytes; }
  // Of a warpgroup's outputs.
  __device__ std::uint32_t staging(int group) const {
    return stages_ + Layout::kStages * Layout::kStageBytes + group * kStagingBytes;
  }
  __device__ std::uint32_t full(int stage) const { return barriers_ + stage * 16; }
  __device__ std::uint32_t empty(int stage) const { return barriers_ + stage * 16 + 8; }

 private:
  const std::uint32_t stages_, barriers_;
};

// A walk through the ring.
template <typename Layout>
struct RingPlace {
  int stage = 0, turn = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < Layout::kStages) return;
    stage = 0;
    turn ^= 1;
  }
};

// The same value, of which the compiler knows that a warp's lanes have it in common: it lets products run on only where all lanes go the same
// way.
__device__ __forceinline__ int same_in_warp(int value) {
  return __shfl_sync(kFullWarp, value, 0);
}

// The items of a product: every tile by the matrix' rows, kRows at a time.
template <typename Layout, bool kGates>
struct ItemGrid {
  // With gates, half of an item's rows are their ups: a thread has both of an output.
  static constexpr int kOutputs = kGates ? Layout::kRows / 2 : Layout::kRows;

  __host__ __device__ static constexpr int outputs(int out) { return kGates ? out / 2 : out; }
  __host__ __device__ static constexpr int columns(int out) {
    return (outputs(out) + kOutputs - 1) / kOutputs;
  }
};

// Weights are the first to leave the second-level cache again, so that rows stay there.
__device__ __forceinline__ void copy_expert_box(std::uint32_t to, const CUtensorMap* map,
                                                int column, int eight, int expert,
                                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(barrier), "r"(column), "r"(0), "r"(eight),
      "r"(expert), "l"(kReadOncePolicy)
      : "memory");
}

// One thread: the matrix.
template <typename Element, typename Layout, bool kGates>
__device__ __forceinline__ void copy_weights(const SortedProduct& p, const CUtensorMap* map,
                                             GroupedRing<Layout> ring, int num_items) {
  using Grid = ItemGrid<Layout, kGates>;
  const int columns = Grid::columns(p.out);
  RingPlace<Layout> place;
  for (int item = blockIdx.x; item < num_items; item += gridDim.x) {
    const int expert = p.tiles[item / columns].expert;
    const int eight = item % columns * (Grid::kOutputs / 8);
    for (int column = 0; column < p.in; column += kStageColumns<Element>) {
      wait_barrier(ring.empty(place.stage), place.turn ^ 1);
      const std::uint32_t full = ring.full(place.stage);
      arrive_expecting(full, Layout::kBoxBytes);
      copy_expert_box(ring.weights(place.stage), map, column, eight, expert, full);
      place.advance();
    }
  }
}

// A warp: outputs of a tile that lie in memory, for whoever waits for all of them.
__device__ __forceinline__ void count_stored(const SortedProduct& p, int tile, int num_outputs) {
  __syncwarp();
  if (threadIdx.x % kWarp != 0) return;
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p.num_stored + tile),
               "r"(num_outputs)
               : "memory");
}

// A warp waits for all of a tile's rows of x.
__device__ __forceinline__ void wait_for_rows(const SortedProduct& p, int tile) {
  if (threadIdx.x % kWarp == 0) {
    int stored;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(stored)
                   : "l"(p.num_stored + tile)
                   : "memory");
    } while (stored < p.in);
  }
  __syncwarp();
}

// Which row of x a sorted row is.
__device__ __forceinline__ int row_of_x(const SortedProduct& p, int at) {
  return p.pairs_per_row > 0 ? p.order[at] / p.pairs_per_row : at;
}

// kXThreads threads: rows of x. What a tile lacks stays as it is in the stage, and so do sums that nobody stores.
template <typename Element, typename Layout, bool kGates>
__device__ __forceinline__ void copy_x(const SortedProduct& p, GroupedRing<Layout> ring,
                                       int num_items, int thread) {
  constexpr int kPieces = kRowBytes / kPieceBytes;  // of a row
  constexpr int kStep = kXThreads / kPieces, kTurns = kGroupedRows / kStep;
  static_assert(kStep % 8 == 0);  // all of a thread's rows are swizzled alike
  const int columns = ItemGrid<Layout, kGates>::columns(p.out);
  const int first = thread / kPieces, piece = thread % kPieces;
  const int place_in_stage =
      first * kRowBytes + (piece ^ wgmma_swizzle<kRowBytes>(first)) * kPieceBytes;
  const auto* const x = static_cast<const char*>(p.x);
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  const auto row_pieces = static_cast<std::uint32_t>(p.x_stride * kElementBytes / kPieceBytes);
  RingPlace<Layout> place;
  for (int item = blockIdx.x; item < num_items; item += gridDim.x) {
    const ExpertTile tile = p.tiles[item / columns];
    if constexpr (!kGates && !kIsFp8<Element>) wait_for_rows(p, item / columns);
    std::uint32_t rows[kTurns];  // where they begin, in pieces
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      rows[i] = row_pieces * row_of_x(p, tile.first + min(first + i * kStep, tile.count - 1));
    }
    const int turns = (tile.count - first + kStep - 1) / kStep;
    const int row_bytes = p.in * kElementBytes;
    for (int begin = 0; begin < row_bytes; begin += kRowBytes) {
      wait_barrier(ring.empty(place.stage), place.turn ^ 1);
      const int byte = begin + piece * kPieceBytes;
      const bool exists = byte < row_bytes;
      const char* const from = exists ? x + byte : x;
      const std::uint32_t to = ring.x(place.stage) + place_in_stage;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        if (i >= turns) break;
        copy_async_16(to + i * kStep * kRowBytes, from + std::uint64_t{rows[i]} * kPieceBytes,
                      exists);
      }
      const std::uint32_t full = ring.full(place.stage);
      tie_async_copies(full);
      __syncwarp();
      if (thread % kWarp == 0) arrive(full);
      place.advance();
    }
  }
  commit_async_copies();
  wait_async_copies<0>();
}

// Four matrices of 8 by 8, as products leave them in a warp; lanes 8i to 8i + 7 say where the columns of matrix i go, as rows.
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t address,
                                                          const std::uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}

// Scales of a tile's rows of x, spread over a warp: lane l has those of rows l, l + 32 and so on.
template <int kRows>
class RowScales {
 public:
  __device__ __forceinline__ RowScales(const SortedProduct& p, const ExpertTile& tile) {
#pragma unroll
    for (int i = 0; i < kRows / kWarp; ++i) {
      const int row = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      own_[i] = p.x_scales[row_of_x(p, tile.first + min(row, tile.count - 1))];
    }
  }

  // By all lanes: of row `eight` + `of_eight`, which is the lane's to choose. `eight`: a multiple of 8 that all lanes have in common.
  __device__ __forceinline__ float of(int eight, int of_eight) const {
    return __shfl_sync(kFullWarp, own_[eight / kWarp], eight % kWarp + of_eight);
  }

 private:
  float own_[kRows / kWarp];
};

// Of rows in T.
struct NoRowScales {
  __device__ __forceinline__ NoRowScales(const SortedProduct&, const ExpertTile&) {}
  __device__ __forceinline__ float of(int, int) const { return 1; }
};

// GELU, its error function by Abramowitz and Stegun's 7.1.26: at most 4e-7 away, and below -4 nearer than 1 + erff is. An item's next
// products wait for its gates, and this takes fewer instructions than erff.
__device__ __forceinline__ float gelu_erf(float x) {
  const float z = fminf(fabsf(x), 16.0f);  // beyond it x or nothing, and no infinity times nothing
  const float t = reciprocal(fmaf(0.3275911f * 0.70710678f, z, 1.0f));
  const float power = power_of_two(z * z * (-0.5f * kLog2E));
  float sum = fmaf(0.5f * 1.061405429f, t, 0.5f * -1.453152027f);
  sum = fmaf(sum, t, 0.5f * 1.421413741f);
  sum = fmaf(sum, t, 0.5f * -0.284496736f);
  sum = fmaf(sum, t, 0.5f * 0.254829592f);
  return fmaf(-z, sum * t * power, fmaxf(x, 0.0f));
}

__device__ __forceinline__ float activate_gate(Activation activation, float x) {
  return activation == Activation::kGeluErf ? gelu_erf(x) : activate(activation, x);
}

// A warpgroup's sums, by way of shared memory, so that whole rows of its outputs go to memory. A thread has two rows of the matrix
// (lane / 4 and + 8 of its warp's 16) by two rows of x of each eight; stored transposed, eight by eight, a row of x has eight
// outputs side by side. The pieces of 16 bytes are swizzled: eight rows' pieces lie in all banks.
template <typename Element, typename Layout, bool kGates, int kRows, typename XScales>
__device__ __forceinline__ void store_sums(const SortedProduct& p, const ExpertTile& tile,
                                           int item_column, const float (&sums)[kRows / 2],
                                           const XScales& x_scales, std::uint32_t staging,
                                           int group) {
  using Grid = ItemGrid<Layout, kGates>;
  constexpr int kHalves = kGates ? 1 : 2;  // eights of outputs of a warp
  constexpr int kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarp;
  constexpr int kPieces = kGroupWarps * kHalves;  // of a row
  constexpr int kRowsAtOnce = kStagingBytes / (kPieces * 16);
  constexpr int kParts = 4 / kHalves;  // eights of rows, of one instruction
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kGroupWarps;
  const int group_first = item_column * Grid::kOutputs + group * kPieces * 8;
  const int first = group_first + warp * 8 * kHalves;
  const int outputs = Grid::outputs(p.out);
  float scales[2] = {1, 1};
  if constexpr (kIsFp8<Element>) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first + lane / 4 + (kGates ? 0 : half * 8);
      if (output < outputs) {
        scales[half] =
            p.scales[std::int64_t{tile.expert} * p.out + output + (kGates ? half * outputs : 0)];
      }
    }
  }
  const auto place = [&](int row, int piece) {
    const int turned = piece ^ (row / (8 / kPieces) % kPieces);
    return staging + (row * kPieces + turned) * 16;
  };
#pragma unroll
  for (int begin = 0; begin < kRows; begin += kRowsAtOnce) {
    if (begin >= tile.count) break;
    named_barrier(1 + group, kGroupThreads);  // nobody reads what was there
#pragma unroll
    for (int part = begin / 8; part < min(kRows, begin + kRowsAtOnce) / 8; part += kParts) {
      if (part * 8 >= tile.count) break;
      std::uint32_t packed[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int of = (part + m / kHalves) * 4, half = m % kHalves;
        float own[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x_scale = x_scales.of((part + m / kHalves) * 8, lane % 4 * 2 + i);
          own[i] = sums[of + half * 2 + i] * (scales[half] * x_scale);
          if constexpr (kGates) {
            const float up = round_to_bf16(sums[of + 2 + i] * (scales[1] * x_scale));
            own[i] = activate_gate(p.activation, round_to_bf16(own[i])) * (up + p.up_offset);
          }
        }
        packed[m] = pack_bf16x2(own[0], own[1]);
      }
      const int row = (part + lane / 8 / kHalves) * 8 - begin + lane % 8;
      store_matrices_transposed(place(row, warp * kHalves + lane / 8 % kHalves), packed);
    }
    named_barrier(1 + group, kGroupThreads);
    const int num_pieces = min(tile.count - begin, kRowsAtOnce) * kPieces;
    for (int i = threadIdx.x % kGroupThreads; i < num_pieces; i += kGroupThreads) {
      const int row = i / kPieces, output = group_first + i % kPieces * 8;
      if (output >= outputs) continue;
      std::uint32_t piece[4];
      load_shared_16(piece, place(row, i % kPieces));
      *reinterpret_cast<uint4*>(p.y + std::int64_t{tile.first + begin + row} * p.y_stride +
                                output) = {piece[0], piece[1], piece[2], piece[3]};
    }
  }
}

// A warpgroup's products of a stage: asked for, and not waited for.
template <typename Element, int kCount>
__device__ __forceinline__ void begin_products(float (&sums)[kCount], std::uint32_t weights,
                                               std::uint32_t x) {
  const std::uint64_t a = wgmma_swizzled_operand<kRowBytes>(weights);
  const std::uint64_t b = wgmma_swizzled_operand<kRowBytes>(x);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kInstructions; ++i) {
    const std::uint64_t own_a = wgmma_moved(a, i * kInstructionBytes),
                        own_b = wgmma_moved(b, i * kInstructionBytes);
    if constexpr (kIsFp8<Element>) {
      wgmma_of_shared_fp8(sums, own_a, own_b);
    } else {
      wgmma_of_shared(sums, own_a, own_b);
    }
  }
  wgmma_commit();
}

// A warpgroup's part of an item of up to kRows rows. A stage's products begin before those of the stage before are through.
template <typename Element, typename Layout, bool kGates, int kRows, typename BeforeStores>
__device__ __forceinline__ void multiply_item(const SortedProduct& p, GroupedRing<Layout> ring,
                                              RingPlace<Layout>& place, const ExpertTile& tile,
                                              int item_column, const BeforeStores& before_stores) {
  const bool is_first_lane = threadIdx.x % kWarp == 0;
  const int group = same_in_warp(threadIdx.x / (4 * kWarp));
  // Long before they are needed: they come by way of `order`.
  const std::conditional_t<kIsFp8<Element>, RowScales<kRows>, NoRowScales> x_scales(p, tile);
  float sums[kRows / 2] = {};
  int read = 0;  // the stage whose products are on their way
  const auto give_back = [&] {
    if (is_first_lane) arrive(ring.empty(read));
  };
  const auto begin_stage = [&] {
    wait_barrier(ring.full(place.stage), place.turn);
    // Here, and not where the copies are made: there a fence waits for all copies on their way.
    publish_shared_to_engines();
    begin_products<Element>(sums, ring.weights(place.stage) + group * (kGroupRows * kRowBytes),
                            ring.x(place.stage));
  };
  const auto advance = [&] {
    read = place.stage;
    place.advance();
  };
  begin_stage();
  advance();
#pragma unroll 1
  for (int column = kStageColumns<Element>; column < p.in; column += kStageColumns<Element>) {
    begin_stage();
    wgmma_wait<1>();
    give_back();
    advance();
  }
  wgmma_wait<0>();
  wgmma_hand_over(sums);
  give_back();
  before_stores();
  store_sums<Element, Layout, kGates, kRows>(p, tile, item_column, sums, x_scales,
                                             ring.staging(group), group);
}

template <typename Element, typename Layout, bool kGates>
__global__ void __launch_bounds__(Layout::kThreads, 1)
    grouped_product_kernel(SortedProduct p, const __grid_constant__ CUtensorMap map) {
  extern __shared__ char shared[];
  const GroupedRing<Layout> ring(shared_address(shared));
  // The tiles are there when the first product waited. So the second one asks for its first weights before that is through, and
  // takes a tile's rows as soon as all of them lie in memory: the last items of the first keep few multiprocessors busy. (In 8 bits
  // rows come from a kernel between the two.)
  constexpr bool kCounts = !kIsFp8<Element>;
  if constexpr (kGates) wait_for_predecessor();
  let_successor_start();
  if (threadIdx.x == 0) {
    ring.init();
    fence_barrier_init();
  }
  __syncthreads();
  const int columns = ItemGrid<Layout, kGates>::columns(p.out);
  const int num_items = *p.num_tiles * columns;
  if (same_in_warp(threadIdx.x / kWarp) >= Layout::kComputeWarps) {
    give_registers<Layout::Registers::kCopy>();
    const int thread = static_cast<int>(threadIdx.x) - Layout::kComputeWarps * kWarp;
    if (thread < kXThreads) {
      if constexpr (!kCounts) wait_for_predecessor();
      copy_x<Element, Layout, kGates>(p, ring, num_items, thread);
    } else if (thread == kXThreads) {
      copy_weights<Element, Layout, kGates>(p, &map, ring, num_items);
    }
    if constexpr (!kGates) wait_for_predecessor();
    return;
  }
  take_registers<Layout::Registers::kCompute>();
  if constexpr (!kCounts) wait_for_predecessor();
  RingPlace<Layout> place;
  // An item's outputs are counted when the next one is about to be stored: by then they have arrived, and nothing waits for them.
  int stored = -1;  // item
  const auto count = [&] {
    if constexpr (kGates && kCounts) {
      if (stored < 0) return;
      using Grid = ItemGrid<Layout, kGates>;
      const int first =
          stored % columns * Grid::kOutputs + static_cast<int>(threadIdx.x) / kWarp * 8;
      count_stored(p, stored / columns, min(max(Grid::outputs(p.out) - first, 0), 8));
    }
  };
  for (int item = blockIdx.x; item < num_items; item += gridDim.x) {
    const ExpertTile tile = p.tiles[item / columns];
    const int item_column = item % columns, rows = same_in_warp(tile.count);
    if (rows <= 32) {
      multiply_item<Element, Layout, kGates, 32>(p, ring, place, tile, item_column, count);
    } else if (rows <= 64) {
      multiply_item<Element, Layout, kGates, 64>(p, ring, place, tile, item_column, count);
    } else if (rows <= 96) {
      multiply_item<Element, Layout, kGates, 96>(p, ring, place, tile, item_column, count);
    } else {
      multiply_item<Element, Layout, kGates, 128>(p, ring, place, tile, item_column, count);
    }
    stored = item;
  }
  count();
  if constexpr (!kGates) wait_for_predecessor();
}

template <typename Element, typename Layout, bool kGates>
Status launch_grouped(Stream& stream, const SortedProduct& p, int max_tiles, int num_blocks) {
  GAPLESS_ASSIGN_OR_RETURN(const CUtensorMap map,
                           make_expert_map(p.weights, sizeof(Element), p.num_experts, p.out, p.in,
                                           kGates ? 2 : 1, Layout::kRows));
  const int max_items = max_tiles * ItemGrid<Layout, kGates>::columns(p.out);
  return launch("experts grouped product", stream,
                {.grid = dim3(static_cast<unsigned>(std::min(max_items, num_blocks))),
                 .block = dim3(Layout::kThreads),
                 .shared_bytes = Layout::kBytes,
                 .registers = Layout::Registers::kStart},
                grouped_product_kernel<Element, Layout, kGates>, p, map);
}

// Items are large where there is one for every multiprocessor: rows of x are read once for each of a tile's items.
template <typename Element, bool kGates>
Status launch_grouped(Stream& stream, const SortedProduct& p, int max_tiles) {
  using Large = GroupedLayout<4>;
  using Small = GroupedLayout<2>;
  (void)native_stream(stream);  // its device is the current one
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  GAPLESS_RETURN_IF_ERROR(launch_status(error, "experts grouped product"));
  return max_tiles * ItemGrid<Large, kGates>::columns(p.out) >= multiprocessors
             ? launch_grouped<Element, Large, kGates>(stream, p, max_tiles, multiprocessors)
             : launch_grouped<Element, Small, kGates>(stream, p, max_tiles, multiprocessors);
}

template <bool kGates>
Status launch_grouped(Stream& stream, const SortedProduct& p, int max_tiles) {
  return p.x_scales == nullptr ? launch_grouped<Bf16, kGates>(stream, p, max_tiles)
                               : launch_grouped<E4m3, kGates>(stream, p, max_tiles);
}

}  // namespace

Status multiply_grouped(Stream& stream, const SortedProduct& product, int max_tiles) {
  return launch_grouped<false>(stream, product, max_tiles);
}

Status multiply_grouped_and_gate(Stream& stream, const SortedProduct& product, int max_tiles) {
  return launch_grouped<true>(stream, product, max_tiles);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
