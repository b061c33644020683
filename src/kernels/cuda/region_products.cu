// Both layers of the region heads as one launch, on path 9.0a alone. Two launches with a wait between them leave memory idle for several
// microseconds each; the weights of both heads of Moondream 2, 117 MB, take 26.
//
//   block  = 8 computing warps + 1 copying thread, one block on each multiprocessor.
//   item   = a few 16-row tiles of a matrix and some of its columns. First come the items of the first layers, all columns
//            of a share of the tiles; then those of the second ones, a quarter of the columns of two tiles each.
//   stage  = 128 columns of an item's tiles and of x, as in row_linear.cu.
//
// The first layers' outputs are the second ones' x, so blocks wait for each other between the two (grid_counters.cuh). All are
// resident: there are no more of them than multiprocessors, and the next launch starts when all of these have. The copying
// thread asks for the second layer's weights before it waits, so memory stays busy.
//
// Sums are in the order of row_linear: over a warp's stages, over warps, over quarters of the columns where row_linear has ranks.
// pick_region_values adds up the quarters.
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/boxes.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/cuda/region_products.h"
#include "kernels/cuda/tensor_map.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kThreads = kProductThreads + kWarp;
constexpr int kTileBytes = kPreparedTileBytes<PreparedFormat::kNative>;
constexpr int kBoxesPerStage = kProductColumns / kBoxColumns;
constexpr int kBoxRowBytes = kBoxColumns * 2;
// Tiles of a second layer's item: fewer than of a first one's, so that there are enough items for all blocks.
constexpr int kSecondTiles = 2;
static_assert(kTileRows == kPreparedTileRows && kProductColumns == kPreparedTileColumns);

// One of the heads' matrices.
struct Matrix {
  const char* prepared;
  const Bf16* bias;
  int out, num_tiles, num_stages;
};

struct Launch {
  BoxSource x_boxes;
  BoxSource inner_boxes[kNumRegionHeads];
  Matrix first[kNumRegionHeads], second[kNumRegionHeads];
  Bf16* inner[kNumRegionHeads];
  float* partial[kNumRegionHeads];
  std::int32_t token_ids[kNumRegionHeads];
  const std::int32_t* tokens;
  const std::int32_t* rows;
  const RowState* row_states;
  int num_rows;
  unsigned* arrived;
};

// Shared memory of a block, in bytes from its 1024-byte aligned start.
template <int kRows>
struct Layout {
  static constexpr int kXBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kWeightBytes = kGroupTiles * kTileBytes;
  static constexpr int kStageBytes = kWeightBytes + kBoxesPerStage * kXBoxBytes;
  // More than half a multiprocessor's, so that each of them gets one block.
  static constexpr int kNumStages = ((200 << 10) - kReduceBytes - 256) / kStageBytes;
  // With up to 8 rows the next step is faster where these weights leave the second-level cache first, with 32 it is slower.
  static constexpr Reading kReading = kRows == 8 ? Reading::kOnce : Reading::kOften;
  static constexpr int kReduce = kNumStages * kStageBytes;
  static constexpr int kBarriers = kReduce + kReduceBytes;
  static constexpr int kBytes = kBarriers + 2 * kNumStages * 8 + 1024;
  static_assert(kNumStages >= 3);
};

struct Item {
  int head, first_tile, num_tiles, first_stage, num_stages, rank;
};

// Heads, as bits, of which a row of this step needs values. All threads.
__device__ unsigned needed_heads(const Launch& launch) {
  unsigned own = 0;
  for (int i = threadIdx.x; i < launch.num_rows; i += kThreads) {
    const int row = launch.rows[i];
    const std::int32_t token = launch.tokens[i];
    if (row < 0) continue;
    for (int head = 0; head < kNumRegionHeads; ++head) {
      if (token != launch.token_ids[head]) continue;
      const RowState& state = launch.row_states[row];
      if (state.done == 0 && (state.flags & kRowDecodesRegions) != 0) own |= 1u << head;
    }
  }
  unsigned needed = 0;
  for (int head = 0; head < kNumRegionHeads; ++head) {
    if (__syncthreads_or((own >> head & 1u) != 0) != 0) needed |= 1u << head;
  }
  return needed;
}

// Calls use(item) for this block's items of the first layers.
template <typename Use>
__device__ __forceinline__ void for_each_first(const Launch& launch, unsigned needed,
                                               const Use& use) {
#pragma unroll 1
  for (int head = 0; head < kNumRegionHeads; ++head) {
    if ((needed >> head & 1u) == 0) continue;
    const Matrix& m = launch.first[head];
    const auto begin = static_cast<int>(blockIdx.x * std::int64_t{m.num_tiles} / gridDim.x);
    const auto end = static_cast<int>((blockIdx.x + 1) * std::int64_t{m.num_tiles} / gridDim.x);
#pragma unroll 1
    for (int tile = begin; tile < end; tile += kGroupTiles) {
      use(Item{head, tile, min(kGroupTiles, end - tile), 0, m.num_stages, 0});
    }
  }
}

// And of the second layers: a group of tiles is four items, one for each quarter of the columns. Blocks take turns.
template <typename Use>
__device__ __forceinline__ void for_each_second(const Launch& launch, unsigned needed,
                                                const Use& use) {
  int dealt = 0;
#pragma unroll 1
  for (int head = 0; head < kNumRegionHeads; ++head) {
    if ((needed >> head & 1u) == 0) continue;
    const Matrix& m = launch.second[head];
    const int num_items = (m.num_tiles + kSecondTiles - 1) / kSecondTiles * kRegionRanks;
    const auto num_blocks = static_cast<int>(gridDim.x);
    const int before = dealt % num_blocks;
    const auto block = static_cast<int>(blockIdx.x);
#pragma unroll 1
    for (int i = block >= before ? block - before : block - before + num_blocks; i < num_items;
         i += num_blocks) {
      const int tile = i / kRegionRanks * kSecondTiles, rank = i % kRegionRanks;
      const int first_stage = rank * m.num_stages / kRegionRanks;
      const int end_stage = (rank + 1) * m.num_stages / kRegionRanks;
      use(Item{head, tile, min(kSecondTiles, m.num_tiles - tile), first_stage,
               end_stage - first_stage, rank});
    }
    dealt += num_items;
  }
}

// The copying thread.
template <int kRows>
class Copies {
 public:
  using L = Layout<kRows>;
  __device__ Copies(const Launch& launch, std::uint32_t shared)
      : launch_(launch), shared_(shared), full_(shared + L::kBarriers) {}

  __device__ void run(unsigned needed) {
    int step = 0;
    for_each_first(launch_, needed, [&](const Item& item) {
      for (int i = 0; i < item.num_stages; ++i, ++step) {
        copy_weights(launch_.first[item.head], item, i, step);
        copy_x(&launch_.x_boxes, item, i, step);
      }
    });
    const int first = step;
    for_each_second(launch_, needed, [&](const Item& item) {
      for (int i = 0; i < item.num_stages && step < first + L::kNumStages; ++i, ++step) {
        copy_weights(launch_.second[item.head], item, i, step);
      }
    });
    wait_for_count(*launch_.arrived, gridDim.x);
    publish_to_copy_engine();
    step = first;
    for_each_second(launch_, needed, [&](const Item& item) {
      for (int i = 0; i < item.num_stages; ++i, ++step) {
        if (step >= first + L::kNumStages) {
          copy_weights(launch_.second[item.head], item, i, step);
        }
        copy_x(&launch_.inner_boxes[item.head], item, i, step);
      }
    });
  }

 private:
  // Waits for the stage, too.
  __device__ void copy_weights(const Matrix& m, const Item& item, int i, int step) const {
    const int slot = step % L::kNumStages;
    if (step >= L::kNumStages) {
      wait_barrier(full_ + (L::kNumStages + slot) * 8, (step / L::kNumStages - 1) & 1);
    }
    expect_copies(full_ + slot * 8, item.num_tiles * kTileBytes + kBoxesPerStage * L::kXBoxBytes);
    copy_bytes_async<L::kReading>(
        shared_ + slot * L::kStageBytes,
        m.prepared + prepared_tile_offset<PreparedFormat::kNative>(m.num_tiles, item.first_tile,
                                                                   item.first_stage + i),
        item.num_tiles * kTileBytes, full_ + slot * 8);
  }

  __device__ void copy_x(const BoxSource* boxes, const Item& item, int i, int step) const {
    const int slot = step % L::kNumStages;
    const std::uint32_t to = shared_ + slot * L::kStageBytes + L::kWeightBytes;
    for (int box = 0; box < kBoxesPerStage; ++box) {
      copy_box_async(to + box * L::kXBoxBytes, boxes,
                     (item.first_stage + i) * kProductColumns + box * kBoxColumns, 0, kRows,
                     full_ + slot * 8);
    }
    complete_copies(full_ + slot * 8);
  }

  const Launch& launch_;
  const std::uint32_t shared_, full_;
};

// One warp's 16 columns of one stage.
template <int kRows>
__device__ __forceinline__ void multiply_stage(Accumulators<kRows>& sums, std::uint32_t stage,
                                               int num_tiles) {
  using L = Layout<kRows>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::uint32_t x_box = stage + L::kWeightBytes + warp / 4 * L::kXBoxBytes;
  const int chunk = warp % 4 * 2 + lane / 8 % 2;
  std::uint32_t b[kRows / 8][2];
  if constexpr (kRows == 8) {
    const int row = lane % 8;
    ldmatrix_x2(b[0], x_box + row * kBoxRowBytes + ((chunk ^ row) << 4));
  } else {
#pragma unroll
    for (int pair = 0; pair < kRows / 16; ++pair) {
      const int row = pair * 16 + lane / 16 * 8 + lane % 8;
      std::uint32_t r[4];
      ldmatrix_x4(r, x_box + row * kBoxRowBytes + ((chunk ^ (row & 7)) << 4));
      b[2 * pair][0] = r[0];
      b[2 * pair][1] = r[1];
      b[2 * pair + 1][0] = r[2];
      b[2 * pair + 1][1] = r[3];
    }
  }
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
    if (tile >= num_tiles) break;
    std::uint32_t a[4];
    load_shared_16(a, stage + tile * kTileBytes + warp * (kTileBytes / kProductWarps) + lane * 16);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) mma_k16(sums[tile][n], a, b[n][0], b[n][1]);
  }
}

// The computing warps: an item's sums, each given to store(row of x, row of W, sum).
template <int kRows, typename Store>
__device__ __forceinline__ void multiply(const Item& item, std::uint32_t shared, float* buffer,
                                         int& step, const Store& store) {
  using L = Layout<kRows>;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  Accumulators<kRows> sums = {};
#pragma unroll 1
  for (int i = 0; i < item.num_stages; ++i, ++step) {
    const int slot = step % L::kNumStages;
    wait_barrier(full + slot * 8, (step / L::kNumStages) & 1);
    multiply_stage<kRows>(sums, shared + slot * L::kStageBytes, item.num_tiles);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(empty + slot * 8);
  }
  reduce_warps<kRows>(sums, item.num_tiles, threadIdx.x / kWarp, buffer,
                      [&](int tile, int row, int tile_row, float sum) {
                        store(row, (item.first_tile + tile) * kTileRows + tile_row, sum);
                      });
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    region_products_kernel(const __grid_constant__ Launch launch) {
  using L = Layout<kRows>;
  extern __shared__ char raw_shared[];
  char* base = raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024;
  const std::uint32_t shared = shared_address(base);
  if (threadIdx.x == kProductThreads) {
    prefetch_box_source(&launch.x_boxes);
    for (const BoxSource& boxes : launch.inner_boxes) prefetch_box_source(&boxes);
    for (int slot = 0; slot < L::kNumStages; ++slot) {
      init_barrier(shared + L::kBarriers + slot * 8, 1);
      init_barrier(shared + L::kBarriers + (L::kNumStages + slot) * 8, kProductWarps);
    }
    fence_barrier_init();
  }
  wait_for_predecessor();
  // Behind it, so that the tokens are there when the next kernel starts.
  let_successor_start();
  const unsigned needed = needed_heads(launch);  // the same in all blocks
  if (needed == 0) return;
  __syncthreads();

  if (threadIdx.x == kProductThreads) Copies<kRows>(launch, shared).run(needed);
  if (threadIdx.x >= kProductThreads) return;
  auto* buffer = reinterpret_cast<float*>(base + L::kReduce);
  int step = 0;
  for_each_first(launch, needed, [&](const Item& item) {
    const Matrix& m = launch.first[item.head];
    multiply<kRows>(item, shared, buffer, step, [&](int row, int column, float sum) {
      if (row >= launch.num_rows || column >= m.out) return;
      if (m.bias != nullptr) sum += __bfloat162float(m.bias[column]);
      launch.inner[item.head][row * std::int64_t{m.out} + column] =
          __float2bfloat16_rn(gelu_tanh(sum));
    });
  });
  publish_to_copy_engine();
  named_barrier(1, kProductThreads);
  if (threadIdx.x == 0) signal(*launch.arrived);
  for_each_second(launch, needed, [&](const Item& item) {
    const int out = launch.second[item.head].out;
    float* to = launch.partial[item.head] + std::int64_t{item.rank} * launch.num_rows * out;
    multiply<kRows>(item, shared, buffer, step, [&](int row, int column, float sum) {
      if (row < launch.num_rows && column < out) to[row * std::int64_t{out} + column] = sum;
    });
  });
}

int num_tiles(const LinearWeights& weights) {
  return (weights.out + kTileRows - 1) / kTileRows;
}
int num_stages(const LinearWeights& weights) {
  return (weights.in + kProductColumns - 1) / kProductColumns;
}

bool is_prepared(const LinearWeights& weights) {
  return weights.prepared != nullptr && weights.prepared_format == PreparedFormat::kNative &&
         weights.restore.prepared == nullptr && weights.in % kVector == 0;
}

Matrix matrix_of(const LinearWeights& weights) {
  return {.prepared = static_cast<const char*>(weights.prepared),
          .bias = static_cast<const Bf16*>(weights.bias),
          .out = weights.out,
          .num_tiles = num_tiles(weights),
          .num_stages = num_stages(weights)};
}

template <int kRows>
Status launch_rows(Stream& stream, const RegionProductsParams& params, int num_multiprocessors) {
  Launch launch_params = {};
  GAPLESS_RETURN_IF_ERROR(describe_boxes(launch_params.x_boxes, params.x, params.num_rows,
                                         params.heads[0].first.in, params.heads[0].first.in,
                                         kRows));
  for (int i = 0; i < kNumRegionHeads; ++i) {
    const RegionProductsParams::Head& head = params.heads[i];
    GAPLESS_RETURN_IF_ERROR(describe_boxes(launch_params.inner_boxes[i], head.inner,
                                           params.num_rows, head.second.in, head.second.in, kRows));
    launch_params.first[i] = matrix_of(head.first);
    launch_params.second[i] = matrix_of(head.second);
    launch_params.inner[i] = static_cast<Bf16*>(head.inner);
    launch_params.partial[i] = head.partial;
    launch_params.token_ids[i] = head.token_id;
  }
  launch_params.tokens = params.tokens;
  launch_params.rows = params.rows;
  launch_params.row_states = params.row_states;
  launch_params.num_rows = params.num_rows;
  launch_params.arrived = params.arrived;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_multiprocessors)),
                          .block = dim3(kThreads),
                          .shared_bytes = Layout<kRows>::kBytes};
  return launch("region_products", stream, shape, region_products_kernel<kRows>, launch_params);
}

}  // namespace

// Where row_linear has ranks is a property of both matrices of a launch: it must be so in the second and not in the first.
bool region_products_take(const RegionDecoderWeights& weights, int num_rows) {
  if (num_rows > kMaxRegionProductRows || weights.coord_fc1.out == 0) return false;
  for (const LinearWeights* one :
       {&weights.coord_fc1, &weights.coord_fc2, &weights.size_fc1, &weights.size_fc2}) {
    if (!is_prepared(*one)) return false;
  }
  const auto has_ranks = [](const LinearWeights& a, const LinearWeights& b) {
    return wants_column_ranks(a) && wants_column_ranks(b);
  };
  return !has_ranks(weights.coord_fc1, weights.size_fc1) &&
         has_ranks(weights.coord_fc2, weights.size_fc2);
}

Status region_products(Stream& stream, const RegionProductsParams& params,
                       int num_multiprocessors) {
  if (params.num_rows <= 8) return launch_rows<8>(stream, params, num_multiprocessors);
  if (params.num_rows <= 16) return launch_rows<16>(stream, params, num_multiprocessors);
  return launch_rows<kMaxRegionProductRows>(stream, params, num_multiprocessors);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
