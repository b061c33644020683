// Both layers of the region heads as one launch, on path 9.0a alone. Two launches with a wait between them leave memory idle for several
// microseconds each; the weights of both heads of Moondream 2, 117 MB, take 26.
//
//   block  = 8 computing warps + 1 thread that copies weights + 1 warp that copies x, one block on each multiprocessor.
//   tiles  = a layer's tiles of 16 rows of W, those of both heads one behind the other; in the second layer each of them four times, with
//            a quarter of the columns. A block has a share of them.
//   item   = up to 4 tiles that lie side by side.
//   stage  = 128 columns of an item's tiles, or of x.
//
// A row needs one head's values or none. A block lists each head's rows and multiplies those alone: x is as much work as the weights
// once there are 64 rows. x of scattered rows is no box of a matrix, so a warp copies it, 16 bytes a lane, and the weights' stages are not
// those of x.
//
// The first layers' outputs are the second ones' x, so blocks wait for each other between the two (grid_counters.cuh). All are
// resident: there are no more of them than multiprocessors, and the next launch starts when all of these have. Weights wait for
// nobody, so memory stays busy.
//
// Sums are in the order of row_linear: over a warp's stages, over warps, over quarters of the columns where row_linear has ranks.
// pick_region_values adds up the quarters. Neither depends on which rows are listed.
#include <algorithm>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/x_fragments.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/cuda/region_products.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kThreads = kProductThreads + 2 * kWarp;
constexpr int kTileBytes = kPreparedTileBytes<PreparedFormat::kNative>;
constexpr int kNumLayers = 2;
static_assert(kTileRows == kPreparedTileRows && kProductColumns == kPreparedTileColumns);

// One of the heads' matrices, and what it is multiplied with.
struct Matrix {
  const char* prepared;
  const Bf16* bias;
  const Bf16* x;  // [num_rows, in]
  int in, out, num_tiles, num_stages;
};

struct Launch {
  Matrix matrices[kNumLayers][kNumRegionHeads];
  Bf16* inner[kNumRegionHeads];
  float* partial[kNumRegionHeads];
  std::int32_t token_ids[kNumRegionHeads];
  const std::int32_t* tokens;
  const std::int32_t* rows;
  const RowState* row_states;
  int num_rows;
  unsigned* arrived;
};

// The rows of x that need a head's values, in order.
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

// A warp for each head.
__device__ void list_rows(const Launch& launch, HeadRows* head_rows) {
  const int head = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (head >= kNumRegionHeads) return;
  int count = 0;
  for (int begin = 0; begin < launch.num_rows; begin += kWarp) {
    const int i = begin + lane;
    bool listed = false;
    if (i < launch.num_rows) {
      const int row = launch.rows[i];
      if (launch.tokens[i] == launch.token_ids[head] && row >= 0) {
        const RowState& state = launch.row_states[row];
        listed = state.done == 0 && (state.flags & kRowDecodesRegions) != 0;
      }
    }
    const unsigned all = __ballot_sync(kFullWarp, listed);
    if (listed) head_rows[head].rows[count + __popc(all & ((1u << lane) - 1))] = i;
    count += __popc(all);
  }
  if (lane == 0) head_rows[head].count = count;
}

// Calls use(item) for this block's items of a layer.
template <typename Use>
__device__ __forceinline__ void for_each_item(const Launch& launch, int layer,
                                              const HeadRows* head_rows, const Use& use) {
  const int num_ranks = layer == 0 ? 1 : kRegionRanks;
  int total = 0;
  for (int head = 0; head < kNumRegionHeads; ++head) {
    if (head_rows[head].count > 0) total += num_ranks * launch.matrices[layer][head].num_tiles;
  }
  const auto begin = static_cast<int>(blockIdx.x * std::int64_t{total} / gridDim.x);
  const auto end = static_cast<int>((blockIdx.x + 1) * std::int64_t{total} / gridDim.x);
  int before = 0;
#pragma unroll 1
  for (int head = 0; head < kNumRegionHeads; ++head) {
    if (head_rows[head].count == 0) continue;
    const Matrix& m = launch.matrices[layer][head];
#pragma unroll 1
    for (int rank = 0; rank < num_ranks; ++rank, before += m.num_tiles) {
      const int first_stage = rank * m.num_stages / num_ranks;
      const int num_stages = (rank + 1) * m.num_stages / num_ranks - first_stage;
      const int end_tile = min(end - before, m.num_tiles);
#pragma unroll 1
      for (int tile = max(begin - before, 0); tile < end_tile; tile += kGroupTiles) {
        use(Item{head, tile, min(kGroupTiles, end_tile - tile), first_stage, num_stages, rank});
      }
    }
  }
}

// One thread.
template <int kRows>
__device__ void copy_weights(const Launch& launch, const Shared<kRows>& shared) {
  int step = 0;
#pragma unroll 1
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

// One warp, two rows at a time. Stages have the form of boxes (tensor_map.h). What a row that is not listed would have is left as it was.
template <int kRows>
__device__ void copy_x(const Launch& launch, const Shared<kRows>& shared) {
  constexpr int kRowsAtOnce = 2, kChunks = kWarp / kRowsAtOnce;
  static_assert(kChunks * kVector == kProductColumns);
  const int lane = threadIdx.x % kWarp, chunk = lane % kChunks;
  const std::uint32_t box = chunk / 8 * Layout<kRows>::kXBoxBytes;
  int step = 0;
#pragma unroll 1
  for (int layer = 0; layer < kNumLayers; ++layer) {
    if (layer > 0) {
      if (lane == 0) wait_for_count(*launch.arrived, gridDim.x);
      __syncwarp();
    }
    for_each_item(launch, layer, shared.head_rows, [&](const Item& item) {
      const Matrix& m = launch.matrices[layer][item.head];
      const HeadRows& listed = shared.head_rows[item.head];
      int offsets[kRows / kRowsAtOnce];
#pragma unroll
      for (int j = 0; j < kRows / kRowsAtOnce; ++j) {
        // Of an odd number the last one twice.
        offsets[j] = listed.rows[min(j * kRowsAtOnce + lane / kChunks, listed.count - 1)] * m.in;
      }
#pragma unroll 1
      for (int i = 0; i < item.num_stages; ++i, ++step) {
        const int column = (item.first_stage + i) * kProductColumns + chunk * kVector;
        const bool exists = column < m.in;
        const Bf16* from = m.x + (exists ? column : 0);
        shared.x.wait_until_empty(step);
        const std::uint32_t stage = shared.x.stage(step) + box;
#pragma unroll
        for (int j = 0; j < kRows / kRowsAtOnce; ++j) {
          if (j * kRowsAtOnce >= listed.count) break;
          const int row = j * kRowsAtOnce + lane / kChunks;
          copy_async_16(stage + row * kBoxRowBytes + ((chunk % 8 ^ row % 8) << 4),
                        from + offsets[j], exists);
        }
        tie_async_copies(shared.x.full(step));
        __syncwarp();
        if (lane == 0) arrive(shared.x.full(step));
      }
    });
  }
}

// The computing warps: an item's sums, each given to store(row of x, row of W, sum).
template <int kRows, typename Store>
__device__ __forceinline__ void multiply(const Item& item, const Shared<kRows>& shared, int& step,
                                         const Store& store) {
  using L = Layout<kRows>;
  // Rows that are multiplied or left out together.
  constexpr int kPartRows = kRows < kReduceRows ? kRows : kReduceRows;
  constexpr int kParts = kRows / kPartRows;
  const HeadRows& listed = shared.head_rows[item.head];
  const int count = listed.count;
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
      load_x_fragments<kPartRows>(b, shared.x.stage(step) + part * kPartRows * kBoxRowBytes,
                                  L::kXBoxBytes);
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
                              if (at >= count) return;
                              store(listed.rows[at],
                                    (item.first_tile + tile) * kTileRows + tile_row, sum);
                            });
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    region_products_kernel(const __grid_constant__ Launch launch) {
  extern __shared__ char raw_shared[];
  const Shared<kRows> shared(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  if (threadIdx.x == kProductThreads) {
    shared.weights.init();
    shared.x.init();
    fence_barrier_init();
  }
  wait_for_predecessor();
  // Behind it, so that the tokens are there when the next kernel starts.
  let_successor_start();
  list_rows(launch, shared.head_rows);
  __syncthreads();
  bool any = false;
  for (int head = 0; head < kNumRegionHeads; ++head) any |= shared.head_rows[head].count > 0;
  if (!any) return;  // all blocks or none

  if (threadIdx.x == kProductThreads) copy_weights(launch, shared);
  if (threadIdx.x >= kProductThreads + kWarp) copy_x(launch, shared);
  if (threadIdx.x >= kProductThreads) return;
  int step = 0;
#pragma unroll 1
  for (int layer = 0; layer < kNumLayers; ++layer) {
    for_each_item(launch, layer, shared.head_rows, [&](const Item& item) {
      const Matrix& m = launch.matrices[layer][item.head];
      multiply(item, shared, step, [&](int row, int column, float sum) {
        if (column >= m.out) return;
        if (layer == 0) {
          if (m.bias != nullptr) sum += __bfloat162float(m.bias[column]);
          launch.inner[item.head][row * std::int64_t{m.out} + column] =
              __float2bfloat16_rn(gelu_tanh(sum));
        } else {
          const std::int64_t at = std::int64_t{item.rank} * launch.num_rows + row;
          launch.partial[item.head][at * m.out + column] = sum;
        }
      });
    });
    if (layer == 0) {
      named_barrier(1, kProductThreads);
      if (threadIdx.x == 0) signal(*launch.arrived);
    }
  }
}

bool is_prepared(const LinearWeights& weights) {
  return weights.prepared != nullptr && weights.prepared_format == PreparedFormat::kNative &&
         weights.restore.prepared == nullptr && weights.in % kVector == 0;
}

Matrix matrix_of(const LinearWeights& weights, const void* x) {
  return {.prepared = static_cast<const char*>(weights.prepared),
          .bias = static_cast<const Bf16*>(weights.bias),
          .x = static_cast<const Bf16*>(x),
          .in = weights.in,
          .out = weights.out,
          .num_tiles = (weights.out + kTileRows - 1) / kTileRows,
          .num_stages = (weights.in + kProductColumns - 1) / kProductColumns};
}

template <int kRows>
Status launch_rows(Stream& stream, const RegionProductsParams& params, int num_multiprocessors) {
  Launch launch_params = {};
  for (int i = 0; i < kNumRegionHeads; ++i) {
    const RegionProductsParams::Head& head = params.heads[i];
    launch_params.matrices[0][i] = matrix_of(head.first, params.x);
    launch_params.matrices[1][i] = matrix_of(head.second, head.inner);
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
