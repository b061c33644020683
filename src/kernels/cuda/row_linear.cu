// The product of a decode step. Weights are the M operand of mma.m16n8k16 (16 rows of W), the
// activations its N operand (8 to 32 rows of x), so one kernel serves every number of rows at the
// speed of reading W.
//
//   block  = 8 computing warps + 1 copying warp. Each block (or cluster, below) owns a range of
//            16-row tiles of W and walks it in groups of up to kGroupTiles tiles.
//   stage  = 128 columns of the group's tiles and of x, in shared memory, filled by asynchronous
//            copies. warp w = the w-th 16 columns of every stage.
//   ranks  = where W has few rows (N / 16 tiles would leave multiprocessors idle), a cluster of four
//            blocks shares a range, each taking a quarter of the columns. Without clusters a block
//            sums the quarters one after the other: the same sums.
//   slices = more than 32 rows of x are divided among blocks that read the same weights side by
//   side.
//
// Row invariance: an output is the sum over a warp's stages in order, then over warps 0..7 in
// order, then over ranks 0..3 in order. None of it depends on the number of rows, on the row's
// place among them, on how tiles are grouped, or on whether the weights are prepared.
//
// Prepared weights (prepared_linear.h) arrive in one contiguous piece per stage, a quarter faster
// than boxes of a row-major matrix: the memory likes long runs. Those of the first stages are asked
// for before wait_for_predecessor: no step writes weights but those that it restores, whose product waits. Where the
// step says which columns are needed (LinearParams::needed) a block waits for that first, and walks over the tiles that
// hold some.
#include <algorithm>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/boxes.cuh"
#include "kernels/cuda/device/clusters.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/x_fragments.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/cuda/row_linear.h"
#include "kernels/cuda/tensor_map.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kComputeWarps = kProductWarps;
constexpr int kComputeThreads = kProductThreads;
constexpr int kThreads = kComputeThreads + kWarp;
constexpr int kStageColumns = kProductColumns;
constexpr int kTileBoxBytes = kTileRows * kBoxRowBytes;
constexpr int kTileBytes = kBoxesPerStage * kTileBoxBytes;  // one tile of one stage
static_assert(kTileRows == kPreparedTileRows && kStageColumns == kPreparedTileColumns);
static_assert(kTileBytes == kPreparedTileBytes<PreparedFormat::kNative>);
constexpr int kMaxSliceRows = 32;
// Two where a block asks for weights while the one before it ends. Without a copy engine nothing is asked for ahead, and the smallest
// shared memory holds one block.
constexpr int kBlocksPerMultiprocessor = kHasCopyEngine ? 2 : 1;

struct Job {
  const char* prepared;  // nullptr: the weights come through the tensor map
  const Bf16* bias;
  const Bf16* residual;
  std::int64_t residual_stride;
  int residual_rows;
  void* y;
  std::int64_t y_stride;
  bool y_is_float;
  int gelu_begin;  // first column with a GELU
  int out;
  int num_stages;  // of the whole width of W
  RowLinearGate gate;
  const StepLogits* needed;  // columns of y; nullptr: all
};

struct Launch {
  BoxSource weight_boxes[kMaxRowLinearJobs];
  BoxSource x_boxes[kMaxRowLinearJobs];
  Job jobs[kMaxRowLinearJobs];
  int num_rows;
  int num_slices;
  int num_ranks;  // over which columns are split
};

// Blocks that share a range of tiles, a rank each. Without clusters a block computes one rank after
// the other.
__device__ int blocks_of_range(const Launch& launch) {
  return kHasClusters ? launch.num_ranks : 1;
}

// Shared memory of a block, in bytes from its 1024-byte aligned start.
template <int kRows>
struct Layout {
  static constexpr int kXBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kWeightBytes = kGroupTiles * kTileBytes;
  static constexpr int kStageBytes = kWeightBytes + kBoxesPerStage * kXBoxBytes;
  // Sums of a group: of a cluster's only one, left for the other ranks in the stages when those are
  // used up; or of the ranks so far.
  static constexpr int kPartialBytes = kGroupTiles * kTileRows * kRows * 4;
  static constexpr int kOwnPartialBytes = kHasClusters ? 0 : kPartialBytes;
  // On 9.0a two blocks fit on a multiprocessor, so that the next kernel's weights arrive while this
  // one ends. Elsewhere one has to fit on the smallest.
  static constexpr int kBudget = kPath.has_warpgroups ? 112 << 10 : kSmallestSharedBytes - 1024;
  static constexpr int kNumStages = (kBudget - kReduceBytes - kOwnPartialBytes - 256) / kStageBytes;
  static constexpr int kReduce = kNumStages * kStageBytes;
  static constexpr int kPartial = kHasClusters ? 0 : kReduce + kReduceBytes;
  static constexpr int kBarriers = kReduce + kReduceBytes + kOwnPartialBytes;
  static constexpr int kBytes = kBarriers + 2 * kNumStages * 8 + 1024;
  static_assert(kNumStages >= 3 && kNumStages <= 16);
  static_assert(kPartialBytes <= kReduce);
};

struct TileRange {
  int begin, end;
};

// The tiles of this cluster of blocks.
__device__ TileRange tile_range(const Job& job, int num_blocks) {
  const int num_tiles = (job.out + kTileRows - 1) / kTileRows;
  const int cluster = blockIdx.x / num_blocks, num_clusters = gridDim.x / num_blocks;
  return {static_cast<int>(static_cast<std::int64_t>(cluster) * num_tiles / num_clusters),
          static_cast<int>(static_cast<std::int64_t>(cluster + 1) * num_tiles / num_clusters)};
}

__device__ bool gate_is_open(const RowLinearGate& gate) {
  if (gate.tokens == nullptr) return true;
  bool open = false;
  for (int i = threadIdx.x; i < gate.num_rows; i += blockDim.x) {
    const int row = gate.rows[i];
    if (row < 0 || gate.tokens[i] != gate.token_id) continue;
    const RowState& state = gate.row_states[row];
    open |= state.done == 0 && (state.flags & kRowDecodesRegions) != 0;
  }
  return __syncthreads_or(open) != 0;
}

// Activation, residual and the one rounding.
__device__ void store_output(const Job& job, int row, int column, float sum) {
  if (job.bias != nullptr) sum += __bfloat162float(job.bias[column]);
  if (column >= job.gelu_begin) sum = gelu_tanh(sum);
  if (job.residual != nullptr) {
    sum += __bfloat162float(job.residual[(row % job.residual_rows) * job.residual_stride + column]);
  }
  const std::int64_t at = row * job.y_stride + column;
  if (job.y_is_float) {
    static_cast<float*>(job.y)[at] = sum;
  } else {
    static_cast<Bf16*>(job.y)[at] = __float2bfloat16_rn(sum);
  }
}

// The stages of one block, in the order in which they are filled and used.
struct StageWalk {
  TileRange tiles;
  int first_stage, num_stages;  // this block's share of the columns

  __device__ int num_groups() const {
    return (tiles.end - tiles.begin + kGroupTiles - 1) / kGroupTiles;
  }
  __device__ int group_begin(int group) const { return tiles.begin + group * kGroupTiles; }
  __device__ int group_size(int group) const {
    return min(kGroupTiles, tiles.end - group_begin(group));
  }
  __device__ int total() const { return num_groups() * num_stages; }
};

// What a block works on.
struct Work {
  const Job& job;
  const BoxSource* weight_boxes;
  const BoxSource* x_boxes;
  StageWalk walk;
  int first_row;  // of x and y
};

template <int kRows>
__device__ void copy_weights(const Work& work, int step, std::uint32_t stage,
                             std::uint32_t barrier) {
  using L = Layout<kRows>;
  const StageWalk& walk = work.walk;
  const int group = step / walk.num_stages;
  const int chunk = walk.first_stage + step % walk.num_stages;
  const int num_tiles = walk.group_size(group);
  expect_copies(barrier, num_tiles * kTileBytes + kBoxesPerStage * L::kXBoxBytes);
  const int first_tile = walk.group_begin(group);
  if (work.job.prepared != nullptr) {
    const std::int64_t all_tiles = (work.job.out + kTileRows - 1) / kTileRows;
    copy_bytes_async(stage,
                     work.job.prepared + prepared_tile_offset<PreparedFormat::kNative>(
                                             all_tiles, first_tile, chunk),
                     num_tiles * kTileBytes, barrier);
    return;
  }
  for (int tile = 0; tile < num_tiles; ++tile) {
    for (int box = 0; box < kBoxesPerStage; ++box) {
      copy_box_async(stage + tile * kTileBytes + box * kTileBoxBytes, work.weight_boxes,
                     chunk * kStageColumns + box * kBoxColumns, (first_tile + tile) * kTileRows,
                     kTileRows, barrier);
    }
  }
}

template <int kRows>
__device__ void copy_x(const Work& work, int step, std::uint32_t stage, std::uint32_t barrier) {
  using L = Layout<kRows>;
  const int chunk = work.walk.first_stage + step % work.walk.num_stages;
  for (int box = 0; box < kBoxesPerStage; ++box) {
    copy_box_async(stage + L::kWeightBytes + box * L::kXBoxBytes, work.x_boxes,
                   chunk * kStageColumns + box * kBoxColumns, work.first_row, kRows, barrier);
  }
  complete_copies(barrier);
}

// The copying lanes.
template <int kRows>
__device__ void fill_stages(const Work& work, std::uint32_t shared) {
  using L = Layout<kRows>;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  const int total = work.walk.total();
  // Weights alone, where they may be asked for before the predecessor is through.
  const int ahead = kHasCopyEngine ? min(total, L::kNumStages) : 0;
  for (int step = 0; step < ahead; ++step) {
    copy_weights<kRows>(work, step, shared + step * L::kStageBytes, full + step * 8);
  }
  wait_for_predecessor();
  for (int step = 0; step < ahead; ++step) {
    copy_x<kRows>(work, step, shared + step * L::kStageBytes, full + step * 8);
  }
  for (int step = ahead; step < total; ++step) {
    const int slot = step % L::kNumStages;
    wait_barrier(empty + slot * 8, (step / L::kNumStages - 1) & 1);
    const std::uint32_t stage = shared + slot * L::kStageBytes;
    copy_weights<kRows>(work, step, stage, full + slot * 8);
    copy_x<kRows>(work, step, stage, full + slot * 8);
  }
}

// One warp's 16 columns of one stage.
template <int kRows>
__device__ __forceinline__ void multiply_stage(Accumulators<kRows>& sums, std::uint32_t stage,
                                               int num_tiles, bool prepared) {
  using L = Layout<kRows>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int box = warp / 4;
  const int chunk = (warp % 4) * 2;  // this warp's first 16-byte chunk of the box's rows
  std::uint32_t b[kRows / 8][2];
  load_x_fragments<kRows>(b, stage + L::kWeightBytes, L::kXBoxBytes);
  // W: prepared tiles hold each lane's fragment in one piece; boxes are swizzled rows.
  const int a_row = lane % 16;
  const std::uint32_t a_offset = prepared ? warp * (kTileBytes / kComputeWarps) + lane * 16
                                          : box * kTileBoxBytes + a_row * kBoxRowBytes +
                                                (((chunk + lane / 16) ^ (a_row & 7)) << 4);
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
    if (tile >= num_tiles) break;
    std::uint32_t a[4];
    const std::uint32_t from = stage + tile * kTileBytes + a_offset;
    if (prepared) {
      load_shared_16(a, from);
    } else {
      ldmatrix_x4(a, from);
    }
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) mma_k16(sums[tile][n], a, b[n][0], b[n][1]);
  }
}

// The computing warps. With several ranks the sums of a group lie in `partial`: in a cluster those of
// this block's rank, for all ranks to read; else those of the ranks so far.
template <int kRows>
__device__ void multiply(const Work& work, const Launch& launch, std::uint32_t shared,
                         float* reduce_buffer, float* partial) {
  using L = Layout<kRows>;
  const StageWalk& walk = work.walk;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  const int lane = threadIdx.x % kWarp;
  const bool prepared = work.job.prepared != nullptr;
  int step = 0;
  for (int group = 0; group < walk.num_groups(); ++group) {
    const int num_tiles = walk.group_size(group);
    const int num_own_ranks = kHasClusters ? 1 : launch.num_ranks;
    for (int rank = 0; rank < num_own_ranks; ++rank) {
      const int end = kHasClusters ? walk.num_stages : (rank + 1) * walk.num_stages / num_own_ranks;
      Accumulators<kRows> sums = {};
      for (int i = kHasClusters ? 0 : rank * walk.num_stages / num_own_ranks; i < end;
           ++i, ++step) {
        const int slot = step % L::kNumStages;
        wait_barrier(full + slot * 8, (step / L::kNumStages) & 1);
        multiply_stage<kRows>(sums, shared + slot * L::kStageBytes, num_tiles, prepared);
        __syncwarp();
        if (lane == 0) arrive(empty + slot * 8);
      }
      // All warps are through with the stages before `partial` takes their place.
      if (kHasClusters && launch.num_ranks > 1) named_barrier(1, kComputeThreads);
      const int first_column = walk.group_begin(group) * kTileRows;
      reduce_warps<kRows>(sums, num_tiles, threadIdx.x / kWarp, reduce_buffer,
                          [&](int tile, int row, int tile_row, float sum) {
                            const int y_row = work.first_row + row;
                            const int column = first_column + tile * kTileRows + tile_row;
                            float* own = partial + (tile * kRows + row) * kTileRows + tile_row;
                            if constexpr (!kHasClusters) {
                              // The same thread's for all ranks.
                              if (rank > 0) sum += *own;
                              if (rank + 1 < num_own_ranks) {
                                *own = sum;
                                return;
                              }
                            }
                            if (kHasClusters && launch.num_ranks > 1) {
                              *own = sum;
                            } else if (y_row < launch.num_rows && column < work.job.out) {
                              store_output(work.job, y_row, column, sum);
                            }
                          });
    }
  }
}

// Sums the ranks' partial sums, each rank a share of them.
template <int kRows>
__device__ void combine_ranks(const Work& work, const Launch& launch, const float* partial) {
  const TileRange& tiles = work.walk.tiles;
  const std::uint32_t address = shared_address(partial);
  const int per_tile = kRows * kTileRows;
  const int total = (tiles.end - tiles.begin) * per_tile;
  for (int i = cluster_rank() * kThreads + threadIdx.x; i < total; i += kColumnRanks * kThreads) {
    const int tile_row = i % kTileRows, row = i / kTileRows % kRows, tile = i / per_tile;
    const int y_row = work.first_row + row;
    const int column = (tiles.begin + tile) * kTileRows + tile_row;
    if (y_row >= launch.num_rows || column >= work.job.out) continue;
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kColumnRanks; ++r) sum += load_from_rank(address + i * 4, r);
    store_output(work.job, y_row, column, sum);
  }
}

// Blocks: x = ranges of tiles, ranks of a cluster side by side; y = job and slice of rows.
template <int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    row_linear_kernel(const __grid_constant__ Launch launch) {
  using L = Layout<kRows>;
  extern __shared__ char raw_shared[];
  char* base = raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024;
  const std::uint32_t shared = shared_address(base);
  const int job_index = blockIdx.y / launch.num_slices;
  const Job& job = launch.jobs[job_index];
  const int num_blocks = blocks_of_range(launch);
  const int rank = num_blocks > 1 ? cluster_rank() : 0;
  const int first_stage = rank * job.num_stages / num_blocks;
  const int end_stage = (rank + 1) * job.num_stages / num_blocks;
  TileRange tiles = tile_range(job, num_blocks);

  let_successor_start();
  if (job.needed != nullptr) {
    wait_for_predecessor();
    // Every block of a cluster has the same tiles, so all of them leave here or none.
    const auto [begin, end] = needed_tiles(*job.needed, {tiles.begin, tiles.end}, kTileRows);
    if (begin >= end) return;
    tiles = {begin, end};
  }
  const Work work{job,
                  &launch.weight_boxes[job_index],
                  &launch.x_boxes[job_index],
                  {tiles, first_stage, end_stage - first_stage},
                  static_cast<int>(blockIdx.y % launch.num_slices) * kRows};
  if (threadIdx.x == kComputeThreads) {
    prefetch_box_source(work.x_boxes);
    for (int slot = 0; slot < L::kNumStages; ++slot) {
      init_barrier(shared + L::kBarriers + slot * 8, 1);
      init_barrier(shared + L::kBarriers + (L::kNumStages + slot) * 8, kComputeWarps);
    }
    fence_barrier_init();
  }
  if (job.gate.tokens != nullptr) {
    wait_for_predecessor();
    // Every block of a cluster sees the same gate, so all of them leave here or none.
    if (!gate_is_open(job.gate)) return;
  }
  __syncthreads();

  auto* partial = reinterpret_cast<float*>(base + L::kPartial);
  const bool copies =
      kCopyingLanes == 1 ? threadIdx.x == kComputeThreads : threadIdx.x >= kComputeThreads;
  if (copies) fill_stages<kRows>(work, shared);
  __syncwarp();
  wait_for_predecessor();
  if (threadIdx.x < kComputeThreads) {
    multiply<kRows>(work, launch, shared, reinterpret_cast<float*>(base + L::kReduce), partial);
  }
  if constexpr (kHasClusters) {
    if (launch.num_ranks > 1) {
      cluster_barrier();
      combine_ranks<kRows>(work, launch, partial);
      cluster_barrier();  // no block leaves while another reads its sums
    }
  }
}

Status check_job(const LinearParams& params, int num_rows) {
  const bool fits = params.num_rows == num_rows && params.weights.in % kVector == 0 &&
                    params.x_stride % kVector == 0 && params.weights.in > 0;
  if (fits) return ok_status();
  return Status(StatusCode::kInvalidArgument,
                "linear: the width and the row stride of x must be multiples of 8");
}

template <int kRows>
Status launch_rows(Stream& stream, const Launch& params, int num_jobs, int num_blocks,
                   bool overlaps) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_blocks),
                                       static_cast<unsigned>(num_jobs * params.num_slices)),
                          .block = dim3(kThreads),
                          .shared_bytes = Layout<kRows>::kBytes,
                          .cluster = kHasClusters ? static_cast<unsigned>(params.num_ranks) : 1,
                          .overlaps = overlaps};
  return launch("row_linear", stream, shape, row_linear_kernel<kRows>, params);
}

int slice_rows(int num_rows) {
  return num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : kMaxSliceRows;
}

// Those in 8 bits are for decoder_blocks.
const char* prepared_weights(const LinearWeights& weights) {
  const bool usable = weights.prepared_format == PreparedFormat::kNative;
  return usable ? static_cast<const char*>(weights.prepared) : nullptr;
}

Job make_job(const RowLinearJob& from) {
  const LinearParams& linear = from.linear;
  const LinearWeights& w = linear.weights;
  return {
      .prepared = prepared_weights(w),
      .bias = static_cast<const Bf16*>(w.bias),
      .residual = static_cast<const Bf16*>(linear.residual),
      .residual_stride = linear.residual_stride,
      .residual_rows = linear.residual_rows,
      .y = linear.y,
      .y_stride = linear.y_stride,
      .y_is_float = linear.y_dtype == DType::kF32,
      .gelu_begin = linear.activation == Activation::kGeluTanh ? linear.activation_begin : w.out,
      .out = w.out,
      .num_stages = (w.in + kStageColumns - 1) / kStageColumns,
      .gate = from.gate,
      .needed = linear.needed};
}

}  // namespace

Status row_linear(Stream& stream, const RowLinearJob* jobs, int num_jobs, int num_multiprocessors) {
  Launch params = {};
  params.num_rows = jobs[0].linear.num_rows;
  const int rows = slice_rows(params.num_rows);
  params.num_slices = (params.num_rows + rows - 1) / rows;
  int most_tiles = 0;
  bool has_ranks = true;
  // Rows that this step restored must not be read ahead.
  bool overlaps = true;
  for (int i = 0; i < num_jobs; ++i) {
    const LinearParams& linear = jobs[i].linear;
    const LinearWeights& w = linear.weights;
    GAPLESS_RETURN_IF_ERROR(check_job(linear, params.num_rows));
    params.jobs[i] = make_job(jobs[i]);
    overlaps = overlaps && w.restore.prepared == nullptr;
    if (params.jobs[i].prepared == nullptr) {
      GAPLESS_RETURN_IF_ERROR(
          describe_boxes(params.weight_boxes[i], w.weight, w.out, w.in, w.in, kTileRows));
    }
    GAPLESS_RETURN_IF_ERROR(
        describe_boxes(params.x_boxes[i], linear.x, params.num_rows, w.in, linear.x_stride, rows));
    const int num_tiles = (w.out + kTileRows - 1) / kTileRows;
    most_tiles = std::max(most_tiles, num_tiles);
    has_ranks = has_ranks && wants_column_ranks(w);
  }
  int num_blocks = std::min(most_tiles, num_multiprocessors);
  params.num_ranks = has_ranks ? kColumnRanks : 1;
  if (kHasClusters && params.num_ranks > 1) {
    num_blocks = (most_tiles + kGroupTiles - 1) / kGroupTiles * kColumnRanks;
  }
  switch (rows) {
    case 8:
      return launch_rows<8>(stream, params, num_jobs, num_blocks, overlaps);
    case 16:
      return launch_rows<16>(stream, params, num_jobs, num_blocks, overlaps);
    default:
      return launch_rows<kMaxSliceRows>(stream, params, num_jobs, num_blocks, overlaps);
  }
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
