// Both layers of the region heads as one launch, on path 9.0a alone. Two launches with a wait between them leave memory idle for several
// microseconds each; the weights of both heads of Moondream 2, 117 MB, take 26.
//
//   block  = 8 computing warps + 1 thread that copies weights + 1 that copies x, one block on each multiprocessor.
//   item   = a few 16-row tiles of a matrix and some of its columns. First come the items of the first layers, all columns
//            of a share of the tiles; then those of the second ones, a quarter of the columns of two to four tiles each.
//   stage  = 128 columns of an item's tiles, or of x, as in row_linear.cu.
//
// A row needs one head's values or none. So with more than 8 rows a head multiplies its own rows alone: with 64, x is as much to
// copy as the weights are. Before the first layers the blocks bring each head's rows together in memory, where they are boxes of
// a matrix; the first layers' outputs lie in the same order.
//
// Blocks wait for each other (grid_counters.cuh) until the rows are together, and between the layers. All are
// resident: there are no more of them than multiprocessors, and the next launch starts when all of these have. Weights wait for
// nobody, so memory stays busy.
//
// Sums are in the order of row_linear: over a warp's stages, over warps, over quarters of the columns where row_linear has ranks.
// pick_region_values adds up the quarters. It does not matter which rows are multiplied together.
#include <climits>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/boxes.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/x_fragments.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/cuda/region_products.h"
#include "kernels/cuda/tensor_map.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kThreads = kProductThreads + 2 * kWarp;
constexpr int kTileBytes = kPreparedTileBytes<PreparedFormat::kNative>;
constexpr int kNumLayers = 2;
static_assert(kTileRows == kPreparedTileRows && kProductColumns == kPreparedTileColumns);

// One of the heads' matrices.
struct Matrix {
  const char* prepared;
  const Bf16* bias;
  int out, num_tiles, num_stages;
};

struct Launch {
  BoxSource x_boxes;  // of `gathered` where rows are gathered
  BoxSource inner_boxes[kNumRegionHeads];
  Matrix matrices[kNumLayers][kNumRegionHeads];
  const Bf16* x;
  Bf16* gathered;
  int dim;
  Bf16* inner[kNumRegionHeads];
  float* partial[kNumRegionHeads];
  std::int32_t token_ids[kNumRegionHeads];
  const std::int32_t* tokens;
  const std::int32_t* rows;
  const RowState* row_states;
  int num_rows;
  unsigned* arrived;
};

// The rows that a head is multiplied with: their numbers in x and in the outputs, in order.
struct HeadRows {
  int count;
  int rows[kMaxRegionProductRows];
};

// Stages in shared memory that some threads fill and others use, in turn.
template <int kStageBytes, int kNumStages>
struct Ring {
  static constexpr int kBytes = kNumStages * kStageBytes;
  static constexpr int kBarrierBytes = 2 * kNumStages * 8;
  std::uint32_t stages, barriers;

  __device__ std::uint32_t stage(int step) const {
    return stages + step % kNumStages * kStageBytes;
  }
  __device__ std::uint32_t full(int step) const { return barriers + step % kNumStages * 8; }
  __device__ std::uint32_t empty(int step) const { return full(step) + kNumStages * 8; }
  __device__ void init() const {
    for (int i = 0; i < kNumStages; ++i) {
      init_barrier(full(i), 1);
      init_barrier(empty(i), kProductWarps);
    }
  }
  __device__ void wait_until_full(int step) const {
    wait_barrier(full(step), step / kNumStages & 1);
  }
  __device__ void wait_until_empty(int step) const {
    if (step >= kNumStages) wait_barrier(empty(step), (step / kNumStages - 1) & 1);
  }
};

// Shared memory of a block, in bytes from its 1024-byte aligned start.
template <int kRows>
struct Layout {
  static constexpr bool kGathers = kRows > 8;
  // Rows that are multiplied or left out together, and columns of boxes.
  static constexpr int kPartRows = kRows < kReduceRows ? kRows : kReduceRows;
  static constexpr int kPartBytes = kPartRows * kBoxRowBytes;
  static constexpr int kXBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kXBytes = kBoxesPerStage * kXBoxBytes;
  static constexpr int kWeightBytes = kGroupTiles * kTileBytes;
  // x comes out of the second-level cache, so a few stages of it are enough.
  using XRing = Ring<kXBytes, (kRows > 32 ? 4 : 8)>;
  // More than half a multiprocessor's, so that each of them gets one block.
  static constexpr int kBudget = 216 << 10;
  static constexpr int kOthers =
      XRing::kBytes + kReduceBytes + 512 + static_cast<int>(sizeof(HeadRows)) * kNumRegionHeads;
  using WeightRing = Ring<kWeightBytes, (kBudget - kOthers) / kWeightBytes>;
  // With up to 8 rows the next step is faster where these weights leave the second-level cache first, with 32 it is slower.
  static constexpr Reading kReading = kRows == 8 ? Reading::kOnce : Reading::kOften;
  static constexpr int kX = WeightRing::kBytes;
  static constexpr int kReduce = kX + XRing::kBytes;
  static constexpr int kWeightBarriers = kReduce + kReduceBytes;
  static constexpr int kXBarriers = kWeightBarriers + WeightRing::kBarrierBytes;
  static constexpr int kHeadRows = kXBarriers + XRing::kBarrierBytes;
  static constexpr int kBytes =
      kHeadRows + static_cast<int>(sizeof(HeadRows)) * kNumRegionHeads + 1024;
};

template <int kRows>
struct Shared {
  using L = Layout<kRows>;
  typename L::WeightRing weights;
  typename L::XRing x;
  float* reduce_buffer;
  HeadRows* head_rows;

  __device__ explicit Shared(char* base)
      : weights{shared_address(base), shared_address(base) + L::kWeightBarriers},
        x{shared_address(base) + L::kX, shared_address(base) + L::kXBarriers},
        reduce_buffer(reinterpret_cast<float*>(base + L::kReduce)),
        head_rows(reinterpret_cast<HeadRows*>(base + L::kHeadRows)) {}
};

struct Item {
  int head, first_tile, num_tiles, first_stage, num_stages, rank;
};

// Whether a lane's rows decode regions: the n-th is row n * kWarp + lane.
using LaneRows = bool[kMaxRegionProductRows / kWarp];

__device__ __forceinline__ void find_decoding_rows(const Launch& launch, LaneRows& decodes) {
#pragma unroll
  for (int n = 0; n < kMaxRegionProductRows / kWarp; ++n) {
    const int i = n * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    const int row = i < launch.num_rows ? launch.rows[i] : -1;
    decodes[n] = row >= 0 && launch.row_states[row].done == 0 &&
                 (launch.row_states[row].flags & kRowDecodesRegions) != 0;
  }
}

// A warp for each head. Those that need its values, or all if one does.
template <bool kGathers>
__device__ void list_rows(const Launch& launch, const LaneRows& decodes, HeadRows* head_rows) {
  const int head = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (head >= kNumRegionHeads) return;
  int count = 0;
#pragma unroll
  for (int n = 0; n < kMaxRegionProductRows / kWarp; ++n) {
    const int i = n * kWarp + lane;
    bool listed = decodes[n] && launch.tokens[i] == launch.token_ids[head];
    unsigned all = __ballot_sync(kFullWarp, listed);
    if constexpr (!kGathers) {
      listed = all != 0 && i < launch.num_rows;
      all = __ballot_sync(kFullWarp, listed);
    }
    if (listed) head_rows[head].rows[count + __popc(all & ((1u << lane) - 1))] = i;
    count += __popc(all);
  }
  if (lane == 0) head_rows[head].count = count;
}

// How many blocks have rows to bring together.
__device__ int gathering_blocks(const HeadRows* head_rows) {
  return min(head_rows[0].count + head_rows[1].count, static_cast<int>(gridDim.x));
}

// The computing threads: one head's rows behind the other's.
__device__ void gather_rows(const Launch& launch, const HeadRows* head_rows) {
  static_assert(kNumRegionHeads == 2);
  const int first = head_rows[0].count, all = first + head_rows[1].count;
#pragma unroll 1
  for (auto to = static_cast<int>(blockIdx.x); to < all; to += static_cast<int>(gridDim.x)) {
    const int from = to < first ? head_rows[0].rows[to] : head_rows[1].rows[to - first];
    for (int i = threadIdx.x * kVector; i < launch.dim; i += kProductThreads * kVector) {
      *reinterpret_cast<uint4*>(launch.gathered + to * launch.dim + i) =
          *reinterpret_cast<const uint4*>(launch.x + from * launch.dim + i);
    }
  }
  publish_to_copy_engine();
  named_barrier(1, kProductThreads);
  if (threadIdx.x == 0 && static_cast<int>(blockIdx.x) < all) signal(*launch.arrived);
}

// Calls use(item) for this block's items of the first layers.
template <typename Use>
__device__ __forceinline__ void for_each_first(const Launch& launch, const HeadRows* head_rows,
                                               const Use& use) {
#pragma unroll 1
  for (int head = 0; head < kNumRegionHeads; ++head) {
    if (head_rows[head].count == 0) continue;
    const Matrix& m = launch.matrices[0][head];
    const auto begin = static_cast<int>(blockIdx.x * std::int64_t{m.num_tiles} / gridDim.x);
    const auto end = static_cast<int>((blockIdx.x + 1) * std::int64_t{m.num_tiles} / gridDim.x);
#pragma unroll 1
    for (int tile = begin; tile < end; tile += kGroupTiles) {
      use(Item{head, tile, min(kGroupTiles, end - tile), 0, m.num_stages, 0});
    }
  }
}

// A group of so many tiles of the second layers is four items, one for each quarter of the columns.
__device__ int items_of(const Matrix& m, int tiles) {
  return (m.num_tiles + tiles - 1) / tiles * kRegionRanks;
}

// The number with which no block has many tiles more than others; of equal ones the largest, which reads x less often.
__device__ int tiles_of_second(const Launch& launch, const HeadRows* head_rows) {
  int best = 1, fewest = INT_MAX;
#pragma unroll 1
  for (int tiles = 2; tiles <= kGroupTiles; ++tiles) {
    int num_items = 0;
    for (int head = 0; head < kNumRegionHeads; ++head) {
      if (head_rows[head].count > 0) num_items += items_of(launch.matrices[1][head], tiles);
    }
    const auto num_blocks = static_cast<int>(gridDim.x);
    const int most = (num_items + num_blocks - 1) / num_blocks * tiles;
    if (most > fewest) continue;
    best = tiles;
    fewest = most;
  }
  return best;
}

// And of the second layers. Blocks take turns.
template <typename Use>
__device__ __forceinline__ void for_each_second(const Launch& launch, const HeadRows* head_rows,
                                                const Use& use) {
  const int tiles = tiles_of_second(launch, head_rows);
  int dealt = 0;
#pragma unroll 1
  for (int head = 0; head < kNumRegionHeads; ++head) {
    if (head_rows[head].count == 0) continue;
    const Matrix& m = launch.matrices[1][head];
    const int num_items = items_of(m, tiles);
    const auto num_blocks = static_cast<int>(gridDim.x);
    const int before = dealt % num_blocks;
    const auto block = static_cast<int>(blockIdx.x);
#pragma unroll 1
    for (int i = block >= before ? block - before : block - before + num_blocks; i < num_items;
         i += num_blocks) {
      const int tile = i / kRegionRanks * tiles, rank = i % kRegionRanks;
      const int first_stage = rank * m.num_stages / kRegionRanks;
      const int end_stage = (rank + 1) * m.num_stages / kRegionRanks;
      use(Item{head, tile, min(tiles, m.num_tiles - tile), first_stage, end_stage - first_stage,
               rank});
    }
    dealt += num_items;
  }
}

template <typename Use>
__device__ __forceinline__ void for_each_item(const Launch& launch, int layer,
                                              const HeadRows* head_rows, const Use& use) {
  if (layer == 0) {
    for_each_first(launch, head_rows, use);
  } else {
    for_each_second(launch, head_rows, use);
  }
}

// One thread.
template <int kRows>
__device__ void copy_weights(const Launch& launch, const Shared<kRows>& shared) {
  int step = 0;
#pragma unroll
  for (int layer = 0; layer < kNumLayers; ++layer) {
    for_each_item(launch, layer, shared.head_rows, [&](const Item& item) {
      const Matrix& m = launch.matrices[layer][item.head];
      const int bytes = item.num_tiles * kTileBytes;
#pragma unroll 1
      for (int i = 0; i < item.num_stages; ++i, ++step) {
        shared.weights.wait_until_empty(step);
        const std::uint32_t full = shared.weights.full(step);
        expect_copies(full, bytes);
        copy_bytes_async<Layout<kRows>::kReading>(
            shared.weights.stage(step),
            m.prepared + prepared_tile_offset<PreparedFormat::kNative>(m.num_tiles, item.first_tile,
                                                                       item.first_stage + i),
            bytes, full);
      }
    });
  }
}

// One thread.
template <int kRows>
__device__ void copy_x(const Launch& launch, const Shared<kRows>& shared) {
  using L = Layout<kRows>;
  const HeadRows* head_rows = shared.head_rows;
  unsigned arrivals = 0;
  int step = 0;
#pragma unroll
  for (int layer = 0; layer < kNumLayers; ++layer) {
    if (layer == 0 && L::kGathers) arrivals += gathering_blocks(head_rows);
    if (layer == 1) arrivals += gridDim.x;
    if (layer == 1 || L::kGathers) {
      wait_for_count(*launch.arrived, arrivals);
      publish_to_copy_engine();
    }
    for_each_item(launch, layer, head_rows, [&](const Item& item) {
      const BoxSource* boxes = layer == 0 ? &launch.x_boxes : &launch.inner_boxes[item.head];
      const int first_row = layer == 0 && L::kGathers && item.head > 0 ? head_rows[0].count : 0;
      const int parts = (head_rows[item.head].count + L::kPartRows - 1) / L::kPartRows;
#pragma unroll 1
      for (int i = 0; i < item.num_stages; ++i, ++step) {
        shared.x.wait_until_empty(step);
        const std::uint32_t full = shared.x.full(step), stage = shared.x.stage(step);
        expect_copies(full, parts * kBoxesPerStage * L::kPartBytes);
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
#pragma unroll
          for (int box = 0; box < kBoxesPerStage; ++box) {
            copy_box_async(stage + box * L::kXBoxBytes + part * L::kPartBytes, boxes,
                           (item.first_stage + i) * kProductColumns + box * kBoxColumns,
                           first_row + part * L::kPartRows, L::kPartRows, full);
          }
        }
      }
    });
  }
}

// The computing warps: an item's sums, each given to store(which of the head's rows, row of W, sum).
template <int kRows, typename Store>
__device__ __forceinline__ void multiply(const Item& item, const Shared<kRows>& shared, int& step,
                                         const Store& store) {
  using L = Layout<kRows>;
  constexpr int kPartRows = L::kPartRows, kParts = kRows / kPartRows;
  const int count = shared.head_rows[item.head].count;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  Accumulators<kPartRows> sums[kParts] = {};
#pragma unroll 1
  for (int i = 0; i < item.num_stages; ++i, ++step) {
    shared.weights.wait_until_full(step);
    std::uint32_t a[kGroupTiles][4];
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      if (tile >= item.num_tiles) break;
      load_shared_16(a[tile], shared.weights.stage(step) + tile * kTileBytes +
                                  warp * (kTileBytes / kProductWarps) + lane * 16);
    }
    shared.x.wait_until_full(step);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part * kPartRows >= count) break;
      std::uint32_t b[kPartRows / 8][2];
      load_x_fragments<kPartRows>(b, shared.x.stage(step) + part * L::kPartBytes, L::kXBoxBytes);
#pragma unroll
      for (int tile = 0; tile < kGroupTiles; ++tile) {
        if (tile >= item.num_tiles) break;
#pragma unroll
        for (int n = 0; n < kPartRows / 8; ++n) {
          mma_k16(sums[part][tile][n], a[tile], b[n][0], b[n][1]);
        }
      }
    }
    __syncwarp();
    if (lane == 0) {
      arrive(shared.weights.empty(step));
      arrive(shared.x.empty(step));
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (part * kPartRows >= count) break;
    reduce_warps<kPartRows>(sums[part], item.num_tiles, warp, shared.reduce_buffer,
                            [&](int tile, int row, int tile_row, float sum) {
                              const int at = part * kPartRows + row;
                              if (at < count) {
                                store(at, (item.first_tile + tile) * kTileRows + tile_row, sum);
                              }
                            });
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    region_products_kernel(const __grid_constant__ Launch launch) {
  using L = Layout<kRows>;
  extern __shared__ char raw_shared[];
  const Shared<kRows> shared(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  if (threadIdx.x == kProductThreads) {
    prefetch_box_source(&launch.x_boxes);
    for (const BoxSource& boxes : launch.inner_boxes) prefetch_box_source(&boxes);
    shared.weights.init();
    shared.x.init();
    fence_barrier_init();
  }
  LaneRows decodes;
  find_decoding_rows(launch, decodes);
  wait_for_predecessor();
  // Behind it, so that the tokens are there when the next kernel starts.
  let_successor_start();
  list_rows<L::kGathers>(launch, decodes, shared.head_rows);
  __syncthreads();
  bool any = false;
  for (int head = 0; head < kNumRegionHeads; ++head) any |= shared.head_rows[head].count > 0;
  if (!any) return;  // all blocks or none

  if (threadIdx.x == kProductThreads) copy_weights(launch, shared);
  if (threadIdx.x == kProductThreads + kWarp) copy_x(launch, shared);
  if (threadIdx.x >= kProductThreads) return;
  if constexpr (L::kGathers) gather_rows(launch, shared.head_rows);
  int step = 0;
#pragma unroll
  for (int layer = 0; layer < kNumLayers; ++layer) {
    for_each_item(launch, layer, shared.head_rows, [&](const Item& item) {
      const Matrix& m = launch.matrices[layer][item.head];
      multiply(item, shared, step, [&](int at, int column, float sum) {
        if (column >= m.out) return;
        if (layer == 0) {
          if (m.bias != nullptr) sum += __bfloat162float(m.bias[column]);
          launch.inner[item.head][at * std::int64_t{m.out} + column] =
              __float2bfloat16_rn(gelu_tanh(sum));
        } else {
          const int row = shared.head_rows[item.head].rows[at];
          launch.partial[item.head]
                        [(item.rank * std::int64_t{launch.num_rows} + row) * m.out + column] = sum;
        }
      });
    });
    if (layer == 0) {
      publish_to_copy_engine();
      named_barrier(1, kProductThreads);
      if (threadIdx.x == 0) signal(*launch.arrived);
    }
  }
}

bool is_prepared(const LinearWeights& weights) {
  return weights.prepared != nullptr && weights.prepared_format == PreparedFormat::kNative &&
         weights.restore.prepared == nullptr && weights.in % kVector == 0;
}

Matrix matrix_of(const LinearWeights& weights) {
  return {.prepared = static_cast<const char*>(weights.prepared),
          .bias = static_cast<const Bf16*>(weights.bias),
          .out = weights.out,
          .num_tiles = (weights.out + kTileRows - 1) / kTileRows,
          .num_stages = (weights.in + kProductColumns - 1) / kProductColumns};
}

template <int kRows>
Status launch_rows(Stream& stream, const RegionProductsParams& params, int num_multiprocessors) {
  using L = Layout<kRows>;
  Launch launch_params = {};
  const int dim = params.heads[0].first.in;
  GAPLESS_RETURN_IF_ERROR(describe_boxes(launch_params.x_boxes,
                                         L::kGathers ? params.gathered : params.x, params.num_rows,
                                         dim, dim, L::kPartRows));
  for (int i = 0; i < kNumRegionHeads; ++i) {
    const RegionProductsParams::Head& head = params.heads[i];
    GAPLESS_RETURN_IF_ERROR(describe_boxes(launch_params.inner_boxes[i], head.inner,
                                           params.num_rows, head.second.in, head.second.in,
                                           L::kPartRows));
    launch_params.matrices[0][i] = matrix_of(head.first);
    launch_params.matrices[1][i] = matrix_of(head.second);
    launch_params.inner[i] = static_cast<Bf16*>(head.inner);
    launch_params.partial[i] = head.partial;
    launch_params.token_ids[i] = head.token_id;
  }
  launch_params.x = static_cast<const Bf16*>(params.x);
  launch_params.gathered = static_cast<Bf16*>(params.gathered);
  launch_params.dim = dim;
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
Status check_region_products(const RegionDecoderWeights& weights) {
  for (const LinearWeights* one :
       {&weights.coord_fc1, &weights.coord_fc2, &weights.size_fc1, &weights.size_fc2}) {
    if (!is_prepared(*one)) return Status(StatusCode::kUnavailable, "a matrix is not prepared");
  }
  const auto has_ranks = [](const LinearWeights& a, const LinearWeights& b) {
    return wants_column_ranks(a) && wants_column_ranks(b);
  };
  if (has_ranks(weights.coord_fc1, weights.size_fc1) ||
      !has_ranks(weights.coord_fc2, weights.size_fc2)) {
    return Status(StatusCode::kUnavailable,
                  "matrices of their sizes are summed up in another order");
  }
  return ok_status();
}

Status region_products(Stream& stream, const RegionProductsParams& params,
                       int num_multiprocessors) {
  if (params.num_rows <= 8) return launch_rows<8>(stream, params, num_multiprocessors);
  if (params.num_rows <= 32) return launch_rows<32>(stream, params, num_multiprocessors);
  return launch_rows<kMaxRegionProductRows>(stream, params, num_multiprocessors);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
