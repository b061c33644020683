// Products over experts of sorted rows, by warpgroups (grouped_experts.h).
//
//   item   = 128 rows of an expert's matrix by one of its tiles, up to 128 rows of x. A block takes every
//            gridDim.x-th; the blocks of one tile follow each other, so that its rows of x are in the
//            second-level cache.
//   stage  = 64 columns of both, in a ring of shared memory that runs on from item to item.
//   block  = four warps that copy, and two warpgroups. Each multiplies 64 rows of the matrix, in registers
//            as A, with all rows of x, in shared memory as B. Neither waits for the other, so one
//            loads and widens while the other multiplies.
//
// Sums are those of expert_product.cuh: mma.sync and wgmma give the same bits, and x lies in the order in which mma.sync
// meets its columns (permuted_columns.cuh).
#include <algorithm>
#include <cstring>

#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/expert_weights.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/permuted_columns.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/grouped_experts.h"
#include "kernels/cuda/launch.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kWeightRows = 128;  // of an item
constexpr int kComputeWarps = 8, kCopyWarps = 4;
constexpr int kCopyThreads = kCopyWarps * kWarp;
constexpr int kThreads = (kComputeWarps + kCopyWarps) * kWarp;
constexpr int kStartRegisters = 168, kComputeRegisters = 208, kCopyRegisters = 72;
static_assert(kComputeWarps * kComputeRegisters + kCopyWarps * kCopyRegisters <=
              (kComputeWarps + kCopyWarps) * kStartRegisters);
constexpr int kXRowBytes = kSliceColumns * static_cast<int>(sizeof(Bf16));
constexpr int kXBytes = kGroupedRows * kXRowBytes;
constexpr int kStageAlignment = 1024;  // of swizzled operands

template <typename Weights>
struct GroupedLayout {
  static constexpr int kRowBytes = kSliceColumns * Weights::kElementBytes;
  static constexpr int kStageBytes = kXBytes + kWeightRows * kRowBytes;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kStages =
      (kLargestSharedBytes - kStageAlignment - kBarrierBytes) / kStageBytes;
  static constexpr int kBytes = kStageAlignment + kStages * kStageBytes + kBarrierBytes;
  static_assert(kStages * 2 * 8 <= kBarrierBytes && kStageBytes % kStageAlignment == 0);
};

// Where 16-byte pieces of the matrix lie: rows next to each other (64 bytes wide: pairs of rows) begin in
// different halves of the banks.
template <int kRowBytes>
__device__ __forceinline__ int weight_place(int row, int byte) {
  return row * kRowBytes + (byte ^ (row / (128 / kRowBytes) % 2 * (kRowBytes / 2)));
}

// The ring: barriers, and where its stages are.
template <typename Weights>
class GroupedRing {
  using Layout = GroupedLayout<Weights>;

 public:
  __device__ explicit GroupedRing(std::uint32_t shared)
      : stages_((shared + kStageAlignment - 1) / kStageAlignment * kStageAlignment),
        barriers_(stages_ + Layout::kStages * Layout::kStageBytes) {}

  __device__ void init() const {
    for (int i = 0; i < Layout::kStages; ++i) {
      init_barrier(full(i), kCopyWarps);
      init_barrier(empty(i), kComputeWarps);
    }
  }
  __device__ std::uint32_t x(int stage) const { return stages_ + stage * Layout::kStageBytes; }
  __device__ std::uint32_t weights(int stage) const { return x(stage) + kXBytes; }
  __device__ std::uint32_t full(int stage) const { return barriers_ + stage * 16; }
  __device__ std::uint32_t empty(int stage) const { return barriers_ + stage * 16 + 8; }

 private:
  const std::uint32_t stages_, barriers_;
};

// A walk through the ring.
template <typename Weights>
struct RingPlace {
  int stage = 0, turn = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < GroupedLayout<Weights>::kStages) return;
    stage = 0;
    turn ^= 1;
  }
};

// Which output a row of an item makes. With gates, eight gates and their eight ups alternate, so that a thread has both of an
// output: of a warp's 16 rows those number lane / 4 and lane / 4 + 8. Without, these two make neighbours. Sixteen
// rows on, it is 8 outputs further or 16.
template <bool kGates>
__device__ __forceinline__ int output_of(int item_column, int row) {
  const int group = row / 16, half = row % 16 / 8;
  return kGates ? item_column * (kWeightRows / 2) + group * 8 + row % 8
                : item_column * kWeightRows + group * 16 + row % 8 * 2 + half;
}

// Rows of an expert's matrix from that of an output to that of the item's row.
template <bool kGates>
__device__ __forceinline__ int rows_behind_output(int row, int out) {
  return kGates && row % 16 >= 8 ? out / 2 : 0;
}

// The row of an expert's matrix that is row `row` of an item, or -1.
template <bool kGates>
__device__ __forceinline__ int matrix_row(int item_column, int row, int out) {
  const int output = output_of<kGates>(item_column, row);
  return output < (kGates ? out / 2 : out) ? output + rows_behind_output<kGates>(row, out) : -1;
}

template <bool kGates>
__host__ __device__ constexpr int item_columns(int out) {
  constexpr int kColumns = kGates ? kWeightRows / 2 : kWeightRows;
  return ((kGates ? out / 2 : out) + kColumns - 1) / kColumns;
}

// The warps that copy.
template <typename Weights, bool kGates>
__device__ __forceinline__ void copy_items(const GroupedProduct& p, GroupedRing<Weights> ring,
                                           int num_items) {
  using Layout = GroupedLayout<Weights>;
  constexpr int kXPieces = kXRowBytes / 16, kXTurns = kXBytes / 16 / kCopyThreads;
  constexpr int kXStep = kCopyThreads / kXPieces;  // rows
  constexpr int kPieces = Layout::kRowBytes / 16;
  constexpr int kStep = kCopyThreads / kPieces, kTurns = kWeightRows / kStep;
  static_assert(kStep % 16 == 0);
  constexpr int kOutputStep = kGates ? kStep / 2 : kStep;
  const int thread = static_cast<int>(threadIdx.x) - kComputeWarps * kWarp;
  const int columns = item_columns<kGates>(p.out);
  const std::int64_t row_bytes = std::int64_t{2} * p.in;
  const int in_bytes = p.in * Weights::kElementBytes;
  RingPlace<Weights> place;
  for (int item = blockIdx.x; item < num_items; item += gridDim.x) {
    const ExpertTile tile = p.tiles[item / columns];
    const int item_column = item % columns;
    const Bf16* x_rows[kXTurns];
#pragma unroll
    for (int i = 0; i < kXTurns; ++i) {
      const int row = thread / kXPieces + i * kXStep;
      const int at = tile.first + row;
      x_rows[i] = nullptr;
      if (row >= tile.count) continue;
      const std::int64_t source = p.pairs_per_row > 0 ? p.order[at] / p.pairs_per_row : at;
      x_rows[i] = p.x + source * p.x_stride + thread % kXPieces * kVector;
    }
    const int first_row = thread / kPieces, byte = thread % kPieces * 16;
    const int output = output_of<kGates>(item_column, first_row);
    const int outputs_left = (kGates ? p.out / 2 : p.out) - output;
    const char* weights = p.weights + byte +
                          (std::int64_t{tile.expert} * p.out + output +
                           rows_behind_output<kGates>(first_row, p.out)) *
                              row_bytes;
    for (SliceWalk piece{p.in}; !piece.is_done(); piece.advance()) {
      wait_barrier(ring.empty(place.stage), place.turn ^ 1);
      const std::uint32_t x = ring.x(place.stage), w = ring.weights(place.stage);
#pragma unroll
      for (int i = 0; i < kXTurns; ++i) {
        const int row = thread / kXPieces + i * kXStep;
        if (x_rows[i] == nullptr) continue;
        const int to = thread % kXPieces ^ wgmma_swizzle<kXRowBytes>(row);
        copy_async_16(x + row * kXRowBytes + to * 16, x_rows[i] + piece.begin(), true);
      }
      const int column_bytes = piece.begin() * Weights::kElementBytes;
      const char* from = weights + column_bytes;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const bool valid = i * kOutputStep < outputs_left && column_bytes + byte < in_bytes;
        copy_async_16(w + weight_place<Layout::kRowBytes>(first_row + i * kStep, byte),
                      valid ? from : p.weights, valid);
        from += kOutputStep * row_bytes;
      }
      tie_async_copies(ring.full(place.stage));
      __syncwarp();
      if (thread % kWarp == 0) arrive(ring.full(place.stage));
      place.advance();
    }
  }
  commit_async_copies();
  wait_async_copies<0>();
}

// What a warpgroup's thread does with its sums: two rows of the matrix (lane / 4 and + 8 of its warp's 16) by two rows of x
// of each eight.
template <bool kGates, int kRows>
__device__ __forceinline__ void store_sums(const GroupedProduct& p, const ExpertTile& tile,
                                           int item_column, const float (&sums)[kRows / 2]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int low = matrix_row<kGates>(item_column, warp * 16 + lane / 4, p.out);
  const int high = matrix_row<kGates>(item_column, warp * 16 + lane / 4 + 8, p.out);
  float scale_low = 1, scale_high = 1;
  if (p.scales != nullptr) {
    const float* scales = p.scales + std::int64_t{tile.expert} * p.out;
    if (low >= 0) scale_low = scales[low];
    if (high >= 0) scale_high = scales[high];
  }
  if constexpr (kGates) {
    // Lanes of neighbouring columns change numbers: each has both columns of one row then.
    const bool is_odd = lane / 4 % 2 != 0;
    const int column = item_column * (kWeightRows / 2) + warp * 8 + lane / 4 / 2 * 2;
#pragma unroll
    for (int part = 0; part < kRows / 8; ++part) {
      float own[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float gate = round_to_bf16(sums[part * 4 + i] * scale_low);
        const float up = round_to_bf16(sums[part * 4 + 2 + i] * scale_high);
        own[i] = activate(p.activation, gate) * (up + p.up_offset);
      }
      const float other = __shfl_xor_sync(kFullWarp, is_odd ? own[0] : own[1], 4);
      const int row = part * 8 + lane % 4 * 2 + (is_odd ? 1 : 0);
      if (row >= tile.count) continue;
      *reinterpret_cast<std::uint32_t*>(p.y + std::int64_t{tile.first + row} * p.y_stride +
                                        permuted_column(column)) =
          is_odd ? pack_bf16x2(other, own[1]) : pack_bf16x2(own[0], other);
    }
  } else {
    if (low < 0) return;  // widths are even
#pragma unroll
    for (int part = 0; part < kRows / 8; ++part) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = part * 8 + lane % 4 * 2 + i;
        if (row >= tile.count) continue;
        *reinterpret_cast<std::uint32_t*>(p.y + std::int64_t{tile.first + row} * p.y_stride + low) =
            pack_bf16x2(sums[part * 4 + i] * scale_low, sums[part * 4 + 2 + i] * scale_high);
      }
    }
  }
}

// A warpgroup's part of an item of up to kRows rows.
template <typename Weights, bool kGates, int kRows>
__device__ __forceinline__ void multiply_item(const GroupedProduct& p, GroupedRing<Weights> ring,
                                              RingPlace<Weights>& place, const ExpertTile& tile,
                                              int item_column) {
  constexpr int kRowBytes = GroupedLayout<Weights>::kRowBytes;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float totals[kRows / 2] = {}, sums[kRows / 2] = {};
  for (SliceWalk piece{p.in}; !piece.is_done(); piece.advance()) {
    wait_barrier(ring.full(place.stage), place.turn);
    // Here, and not where the copies are made: there a fence waits for all copies on their way.
    publish_shared_to_engines();
    const std::uint32_t weights = ring.weights(place.stage);
    const auto read = [&](int row, int step) {
      const int byte = (step * kStepColumns + lane % 4 * kVector) * Weights::kElementBytes;
      std::uint32_t words[sizeof(typename Weights::Raw) / 4];
      load_shared(words, weights + weight_place<kRowBytes>(row, byte));
      typename Weights::Raw raw;
      std::memcpy(&raw, words, sizeof(raw));
      return Weights::widen(raw);
    };
    std::uint32_t a[2 * kStepsPerSlice][4];
#pragma unroll
    for (int step = 0; step < kStepsPerSlice; ++step) {  // as multiply_step has them
      const uint4 low = read(warp * 16 + lane / 4, step);
      const uint4 high = read(warp * 16 + lane / 4 + 8, step);
      const std::uint32_t words[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) a[step * 2 + i / 4][i % 4] = words[i];
    }
    const std::uint64_t x = wgmma_swizzled_operand<kXRowBytes>(ring.x(place.stage));
    wgmma_hand_over(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2 * kStepsPerSlice; ++i) {
      wgmma_add<false>(sums, a[i], wgmma_moved(x, i * 16 * static_cast<int>(sizeof(Bf16))));
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hand_over(sums);
    if (lane == 0) arrive(ring.empty(place.stage));
    place.advance();
    if (!piece.ends_slice()) continue;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      totals[i] += sums[i];
      sums[i] = 0;
    }
  }
  store_sums<kGates, kRows>(p, tile, item_column, totals);
}

template <typename Weights, bool kGates>
__global__ void __launch_bounds__(kThreads, 1) grouped_product_kernel(GroupedProduct p) {
  extern __shared__ char shared[];
  const GroupedRing<Weights> ring(shared_address(shared));
  let_successor_start();
  if (threadIdx.x == 0) {
    ring.init();
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_predecessor();
  const int columns = item_columns<kGates>(p.out);
  const int num_items = *p.num_tiles * columns;
  if (threadIdx.x >= kComputeWarps * kWarp) {
    give_registers<kCopyRegisters>();
    copy_items<Weights, kGates>(p, ring, num_items);
    return;
  }
  take_registers<kComputeRegisters>();
  RingPlace<Weights> place;
  for (int item = blockIdx.x; item < num_items; item += gridDim.x) {
    const ExpertTile tile = p.tiles[item / columns];
    const int item_column = item % columns;
    if (tile.count <= 32) {
      multiply_item<Weights, kGates, 32>(p, ring, place, tile, item_column);
    } else if (tile.count <= 64) {
      multiply_item<Weights, kGates, 64>(p, ring, place, tile, item_column);
    } else if (tile.count <= 96) {
      multiply_item<Weights, kGates, 96>(p, ring, place, tile, item_column);
    } else {
      multiply_item<Weights, kGates, 128>(p, ring, place, tile, item_column);
    }
  }
}

template <typename Weights, bool kGates>
Status launch_grouped(Stream& stream, const GroupedProduct& p, int max_tiles) {
  const int max_items = max_tiles * item_columns<kGates>(p.out);
  (void)native_stream(stream);  // its device is the current one
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  GAPLESS_RETURN_IF_ERROR(launch_status(error, "experts grouped product"));
  return launch("experts grouped product", stream,
                {.grid = dim3(static_cast<unsigned>(std::min(max_items, multiprocessors))),
                 .block = dim3(kThreads),
                 .shared_bytes = GroupedLayout<Weights>::kBytes,
                 .registers = kStartRegisters},
                grouped_product_kernel<Weights, kGates>, p);
}

template <bool kGates>
Status launch_grouped(Stream& stream, const GroupedProduct& p, int max_tiles) {
  return p.scales == nullptr ? launch_grouped<NativeExperts, kGates>(stream, p, max_tiles)
                             : launch_grouped<Fp8Experts, kGates>(stream, p, max_tiles);
}

}  // namespace

Status multiply_grouped(Stream& stream, const GroupedProduct& product, int max_tiles) {
  return launch_grouped<false>(stream, product, max_tiles);
}

Status multiply_grouped_and_gate(Stream& stream, const GroupedProduct& product, int max_tiles) {
  return launch_grouped<true>(stream, product, max_tiles);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
