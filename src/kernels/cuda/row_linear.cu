// The product of a decode step. Weights are the M operand of mma.m16n8k16 (16 rows of W), the
// activations its N operand (8 to 64 rows of x), so one kernel serves every number of rows at the
// speed of reading W.
//
//   block  = 8 computing warps + 1 copying thread. Each block (or cluster, below) owns a range of
//            16-row tiles of W and walks it in groups of up to kGroupTiles tiles.
//   stage  = 128 columns of the group's tiles and of x, in shared memory, filled by the tensor copy
//            engine in 128-byte-swizzled boxes of 64 columns.
//   warp w = the w-th 16 columns of every stage.
//   ranks  = where W has few rows (N / 16 tiles would leave multiprocessors idle), a cluster of four
//            blocks shares a range, each taking a quarter of the columns.
//
// Row invariance: an output is the sum over a warp's stages in order, then over warps 0..7 in order,
// then over ranks 0..3 in order. None of it depends on the number of rows, on the row's place among
// them, or on how tiles are grouped.
//
// The first stages' weights are copied before wait_for_predecessor: they are never written in a step.
#include <algorithm>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_linear.h"
#include "kernels/cuda/tensor_map.h"

namespace gapless::cuda {
namespace {

constexpr int kTileRows = 16;
constexpr int kGroupTiles = 4;
constexpr int kComputeWarps = 8;
constexpr int kComputeThreads = kComputeWarps * kWarp;
constexpr int kThreads = kComputeThreads + kWarp;
constexpr int kStageColumns = 128;
constexpr int kBoxesPerStage = kStageColumns / kBoxColumns;
constexpr int kBoxRowBytes = kBoxColumns * 2;
constexpr int kTileBoxBytes = kTileRows * kBoxRowBytes;
constexpr int kReduceRows = 32;   // rows of x reduced at a time
constexpr int kReducePitch = 20;  // floats per row of x in the reduction buffer; 16 and padding
constexpr int kColumnRanks = 4;

struct Job {
  const Bf16* bias;
  const Bf16* residual;
  std::int64_t residual_stride;
  int residual_rows;
  void* y;
  std::int64_t y_stride;
  bool y_is_float;
  bool gelu;
  int out;
  int num_stages;  // of the whole width of W
  RowLinearGate gate;
};

struct Launch {
  CUtensorMap weight_maps[kMaxRowLinearJobs];
  CUtensorMap x_maps[kMaxRowLinearJobs];
  Job jobs[kMaxRowLinearJobs];
  int num_rows;
  int num_ranks;  // blocks of a cluster, over which columns are split
};

// Shared memory of a block, in bytes from its 1024-byte aligned start.
template <int kRows>
struct Layout {
  static constexpr int kXBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kWeightBytes = kGroupTiles * kBoxesPerStage * kTileBoxBytes;
  static constexpr int kStageBytes = kWeightBytes + kBoxesPerStage * kXBoxBytes;
  static constexpr int kReduced = kRows < kReduceRows ? kRows : kReduceRows;
  static constexpr int kReduceBytes = kComputeWarps * kReduced * kReducePitch * 4;
  static constexpr int kPartialBytes = kGroupTiles * kTileRows * kRows * 4;
  // Two kernels fit on a multiprocessor, so that the next one's weights arrive while this one ends;
  // at 64 rows only one does.
  static constexpr int kBudget = kRows <= 32 ? 112 << 10 : 222 << 10;
  static constexpr int kNumStages =
      (kBudget - 1024 - kReduceBytes - kPartialBytes - 256) / kStageBytes;
  static constexpr int kReduce = kNumStages * kStageBytes;
  static constexpr int kPartial = kReduce + kReduceBytes;
  static constexpr int kBarriers = kPartial + kPartialBytes;
  static constexpr int kBytes = kBarriers + 2 * kNumStages * 8 + 1024;
  static_assert(kNumStages >= 2 && kNumStages <= 16);
};

struct TileRange {
  int begin, end;
};

// The tiles of this cluster.
__device__ TileRange tile_range(const Job& job, int num_ranks) {
  const int num_tiles = (job.out + kTileRows - 1) / kTileRows;
  const int cluster = blockIdx.x / num_ranks, num_clusters = gridDim.x / num_ranks;
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
  if (job.gelu) sum = gelu_tanh(sum);
  if (job.residual != nullptr) {
    sum += __bfloat162float(
        job.residual[(row % job.residual_rows) * job.residual_stride + column]);
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
  int first_stage, num_stages;  // this rank's share of the columns

  __device__ int num_groups() const {
    return (tiles.end - tiles.begin + kGroupTiles - 1) / kGroupTiles;
  }
  __device__ int group_begin(int group) const { return tiles.begin + group * kGroupTiles; }
  __device__ int group_size(int group) const {
    return min(kGroupTiles, tiles.end - group_begin(group));
  }
  __device__ int total() const { return num_groups() * num_stages; }
};

template <int kRows>
__device__ void copy_weights(const StageWalk& walk, int step, std::uint32_t stage,
                             std::uint32_t barrier, const CUtensorMap* map, std::uint64_t policy) {
  using L = Layout<kRows>;
  const int group = step / walk.num_stages;
  const int column = (walk.first_stage + step % walk.num_stages) * kStageColumns;
  const int num_tiles = walk.group_size(group);
  arrive_expecting(barrier, kBoxesPerStage * (num_tiles * kTileBoxBytes + L::kXBoxBytes));
  for (int tile = 0; tile < num_tiles; ++tile) {
    for (int box = 0; box < kBoxesPerStage; ++box) {
      copy_box_async(stage + (tile * kBoxesPerStage + box) * kTileBoxBytes, map,
                     column + box * kBoxColumns, (walk.group_begin(group) + tile) * kTileRows,
                     barrier, policy);
    }
  }
}

template <int kRows>
__device__ void copy_x(const StageWalk& walk, int step, std::uint32_t stage, std::uint32_t barrier,
                       const CUtensorMap* map, std::uint64_t policy) {
  using L = Layout<kRows>;
  const int column = (walk.first_stage + step % walk.num_stages) * kStageColumns;
  for (int box = 0; box < kBoxesPerStage; ++box) {
    copy_box_async(stage + L::kWeightBytes + box * L::kXBoxBytes, map, column + box * kBoxColumns, 0,
                   barrier, policy);
  }
}

// The copying thread.
template <int kRows>
__device__ void fill_stages(const StageWalk& walk, std::uint32_t shared, const CUtensorMap* weights,
                            const CUtensorMap* x, bool gated) {
  using L = Layout<kRows>;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  const std::uint64_t stream_policy = streaming_policy(), keep_policy = keeping_policy();
  const int total = walk.total();
  const int ahead = min(total, L::kNumStages);
  for (int step = 0; step < ahead; ++step) {
    copy_weights<kRows>(walk, step, shared + step * L::kStageBytes, full + step * 8, weights,
                        stream_policy);
  }
  if (!gated) wait_for_predecessor();
  for (int step = 0; step < ahead; ++step) {
    copy_x<kRows>(walk, step, shared + step * L::kStageBytes, full + step * 8, x, keep_policy);
  }
  for (int step = ahead; step < total; ++step) {
    const int slot = step % L::kNumStages;
    wait_barrier(empty + slot * 8, (step / L::kNumStages - 1) & 1);
    const std::uint32_t stage = shared + slot * L::kStageBytes;
    copy_weights<kRows>(walk, step, stage, full + slot * 8, weights, stream_policy);
    copy_x<kRows>(walk, step, stage, full + slot * 8, x, keep_policy);
  }
}

template <int kRows>
using Accumulators = float[kGroupTiles][kRows / 8][4];

// One warp's 16 columns of one stage.
template <int kRows>
__device__ __forceinline__ void multiply_stage(Accumulators<kRows>& sums, std::uint32_t stage,
                                               int num_tiles) {
  using L = Layout<kRows>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int box = warp / 4;
  const int chunk = (warp % 4) * 2;  // this warp's first 16-byte chunk of the box's rows

  // x, rows as columns of B: lanes 0-7 address the first 8 columns (k) of 8 rows, lanes 8-15 the
  // second, lanes 16-31 the same of the next 8 rows.
  std::uint32_t b[kRows / 8][2];
  const std::uint32_t x_box = stage + L::kWeightBytes + box * L::kXBoxBytes;
  const int b_chunk = chunk + (lane / 8) % 2;
  if constexpr (kRows == 8) {
    const int row = lane % 8;
    ldmatrix_x2(b[0], x_box + row * kBoxRowBytes + ((b_chunk ^ row) << 4));
  } else {
#pragma unroll
    for (int pair = 0; pair < kRows / 16; ++pair) {
      const int row = pair * 16 + (lane / 16) * 8 + lane % 8;
      std::uint32_t r[4];
      ldmatrix_x4(r, x_box + row * kBoxRowBytes + ((b_chunk ^ (row & 7)) << 4));
      b[2 * pair][0] = r[0];
      b[2 * pair][1] = r[1];
      b[2 * pair + 1][0] = r[2];
      b[2 * pair + 1][1] = r[3];
    }
  }
  const int a_row = lane % 16;
  const std::uint32_t a_offset =
      box * kTileBoxBytes + a_row * kBoxRowBytes + (((chunk + lane / 16) ^ (a_row & 7)) << 4);
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
    if (tile >= num_tiles) break;
    std::uint32_t a[4];
    ldmatrix_x4(a, stage + tile * kBoxesPerStage * kTileBoxBytes + a_offset);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) mma_k16(sums[tile][n], a, b[n][0], b[n][1]);
  }
}

// Sums one tile over the warps; `use(row of x, row of the tile, sum)` is called once per output.
template <int kRows, typename Use>
__device__ __forceinline__ void reduce_tile(const float (&sums)[kRows / 8][4], float* buffer,
                                            const Use& use) {
  using L = Layout<kRows>;
  constexpr int kReduced = L::kReduced;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int first = 0; first < kRows; first += kReduced) {
    float* mine = buffer + warp * kReduced * kReducePitch;
#pragma unroll
    for (int n = 0; n < kReduced / 8; ++n) {
      const float(&c)[4] = sums[first / 8 + n];
      const int row = n * 8 + (lane % 4) * 2, tile_row = lane / 4;
      mine[row * kReducePitch + tile_row] = c[0];
      mine[(row + 1) * kReducePitch + tile_row] = c[1];
      mine[row * kReducePitch + tile_row + 8] = c[2];
      mine[(row + 1) * kReducePitch + tile_row + 8] = c[3];
    }
    named_barrier(1, kComputeThreads);
    for (int i = threadIdx.x; i < kReduced * kTileRows; i += kComputeThreads) {
      const int row = i / kTileRows, tile_row = i % kTileRows;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kComputeWarps; ++w) {
        sum += buffer[(w * kReduced + row) * kReducePitch + tile_row];
      }
      use(first + row, tile_row, sum);
    }
    named_barrier(1, kComputeThreads);
  }
}

// The computing warps. With several ranks the sums of the one group are left in `partial`.
template <int kRows>
__device__ void multiply(const StageWalk& walk, const Launch& launch, const Job& job,
                         std::uint32_t shared, float* reduce_buffer, float* partial) {
  using L = Layout<kRows>;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  const int lane = threadIdx.x % kWarp;
  int step = 0;
  for (int group = 0; group < walk.num_groups(); ++group) {
    const int num_tiles = walk.group_size(group);
    Accumulators<kRows> sums = {};
    for (int i = 0; i < walk.num_stages; ++i, ++step) {
      const int slot = step % L::kNumStages;
      wait_barrier(full + slot * 8, (step / L::kNumStages) & 1);
      multiply_stage<kRows>(sums, shared + slot * L::kStageBytes, num_tiles);
      __syncwarp();
      if (lane == 0) arrive(empty + slot * 8);
    }
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      if (tile >= num_tiles) break;
      const int first_column = (walk.group_begin(group) + tile) * kTileRows;
      reduce_tile<kRows>(sums[tile], reduce_buffer, [&](int row, int tile_row, float sum) {
        if (launch.num_ranks > 1) {
          partial[(tile * kRows + row) * kTileRows + tile_row] = sum;
        } else if (row < launch.num_rows && first_column + tile_row < job.out) {
          store_output(job, row, first_column + tile_row, sum);
        }
      });
    }
  }
}

// Sums the ranks' partial sums, each rank a share of the rows of x.
template <int kRows>
__device__ void combine_ranks(const StageWalk& walk, const Launch& launch, const Job& job,
                              const float* partial) {
  const std::uint32_t address = shared_address(partial);
  const int rank = cluster_rank();
  const int per_tile = kRows * kTileRows;
  const int total = (walk.tiles.end - walk.tiles.begin) * per_tile;
  for (int i = rank * kThreads + threadIdx.x; i < total; i += kColumnRanks * kThreads) {
    const int tile_row = i % kTileRows, row = i / kTileRows % kRows, tile = i / per_tile;
    const int column = (walk.tiles.begin + tile) * kTileRows + tile_row;
    if (row >= launch.num_rows || column >= job.out) continue;
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kColumnRanks; ++r) sum += load_from_rank(address + i * 4, r);
    store_output(job, row, column, sum);
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, kRows <= 32 ? 2 : 1)
    row_linear_kernel(const __grid_constant__ Launch launch) {
  using L = Layout<kRows>;
  extern __shared__ char raw_shared[];
  char* base = raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024;
  const std::uint32_t shared = shared_address(base);
  const Job& job = launch.jobs[blockIdx.y];
  const int rank = launch.num_ranks > 1 ? cluster_rank() : 0;
  StageWalk walk;
  walk.tiles = tile_range(job, launch.num_ranks);
  walk.first_stage = rank * job.num_stages / launch.num_ranks;
  walk.num_stages = (rank + 1) * job.num_stages / launch.num_ranks - walk.first_stage;

  let_successor_start();
  if (threadIdx.x == kComputeThreads) {
    prefetch_tensor_map(&launch.weight_maps[blockIdx.y]);
    prefetch_tensor_map(&launch.x_maps[blockIdx.y]);
    for (int slot = 0; slot < L::kNumStages; ++slot) {
      init_barrier(shared + L::kBarriers + slot * 8, 1);
      init_barrier(shared + L::kBarriers + (L::kNumStages + slot) * 8, kComputeWarps);
    }
    fence_barrier_init();
  }
  const bool gated = job.gate.tokens != nullptr;
  if (gated) wait_for_predecessor();
  // Every block of a cluster sees the same gate, so all of them leave here or none.
  if (!gate_is_open(job.gate)) return;
  __syncthreads();

  auto* partial = reinterpret_cast<float*>(base + L::kPartial);
  if (threadIdx.x >= kComputeThreads) {
    if (threadIdx.x == kComputeThreads) {
      fill_stages<kRows>(walk, shared, &launch.weight_maps[blockIdx.y], &launch.x_maps[blockIdx.y],
                         gated);
    }
    __syncwarp();
    wait_for_predecessor();
  } else {
    if (!gated) wait_for_predecessor();
    multiply<kRows>(walk, launch, job, shared, reinterpret_cast<float*>(base + L::kReduce), partial);
  }
  if (launch.num_ranks > 1) {
    cluster_barrier();
    combine_ranks<kRows>(walk, launch, job, partial);
    cluster_barrier();  // no block leaves while another reads its sums
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
Status launch_rows(Stream& stream, const Launch& launch_params, int num_jobs, int num_blocks) {
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_jobs)),
      .block = dim3(kThreads),
      .shared_bytes = Layout<kRows>::kBytes,
      .cluster = static_cast<unsigned>(launch_params.num_ranks)};
  return launch("row_linear", stream, shape, row_linear_kernel<kRows>, launch_params);
}

int bucket_of(int num_rows) {
  return num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : num_rows <= 32 ? 32 : 64;
}

Status run_rows(Stream& stream, const RowLinearJob* jobs, int num_jobs, int num_multiprocessors,
                int first_row, int num_rows) {
  Launch params = {};
  params.num_rows = num_rows;
  const int bucket = bucket_of(num_rows);
  int most_tiles = 0;
  bool few_tiles = true, many_columns = true;
  for (int i = 0; i < num_jobs; ++i) {
    const LinearParams& linear = jobs[i].linear;
    const auto* x = static_cast<const Bf16*>(linear.x) + first_row * linear.x_stride;
    const LinearWeights& w = linear.weights;
    GAPLESS_ASSIGN_OR_RETURN(params.weight_maps[i],
                             make_tensor_map(w.weight, w.out, w.in, w.in, kTileRows));
    GAPLESS_ASSIGN_OR_RETURN(params.x_maps[i],
                             make_tensor_map(x, num_rows, w.in, linear.x_stride, bucket));
    const bool y_is_float = linear.y_dtype == DType::kF32;
    params.jobs[i] = {.bias = static_cast<const Bf16*>(w.bias),
                      .residual = static_cast<const Bf16*>(linear.residual),
                      .residual_stride = linear.residual_stride,
                      .residual_rows = linear.residual_rows,
                      .y = static_cast<char*>(linear.y) +
                           first_row * linear.y_stride * (y_is_float ? 4 : 2),
                      .y_stride = linear.y_stride,
                      .y_is_float = y_is_float,
                      .gelu = linear.activation == Activation::kGeluTanh,
                      .out = w.out,
                      .num_stages = (w.in + kStageColumns - 1) / kStageColumns,
                      .gate = jobs[i].gate};
    const int num_tiles = (w.out + kTileRows - 1) / kTileRows;
    most_tiles = std::max(most_tiles, num_tiles);
    // A property of the weights alone, never of the device or the rows: it decides the order of sums.
    few_tiles = few_tiles && num_tiles <= 128;
    many_columns = many_columns && params.jobs[i].num_stages >= 2 * kColumnRanks;
  }
  int num_blocks = std::min(most_tiles, num_multiprocessors);
  params.num_ranks = few_tiles && many_columns ? kColumnRanks : 1;
  if (params.num_ranks > 1) {
    num_blocks = (most_tiles + kGroupTiles - 1) / kGroupTiles * kColumnRanks;
  }
  switch (bucket) {
    case 8:
      return launch_rows<8>(stream, params, num_jobs, num_blocks);
    case 16:
      return launch_rows<16>(stream, params, num_jobs, num_blocks);
    case 32:
      return launch_rows<32>(stream, params, num_jobs, num_blocks);
    default:
      return launch_rows<64>(stream, params, num_jobs, num_blocks);
  }
}

}  // namespace

Status row_linear(Stream& stream, const RowLinearJob* jobs, int num_jobs,
                  int num_multiprocessors) {
  const int num_rows = jobs[0].linear.num_rows;
  for (int i = 0; i < num_jobs; ++i) GAPLESS_RETURN_IF_ERROR(check_job(jobs[i].linear, num_rows));
  for (int first = 0; first < num_rows; first += kMaxRowLinearRows) {
    const int count = std::min(kMaxRowLinearRows, num_rows - first);
    GAPLESS_RETURN_IF_ERROR(run_rows(stream, jobs, num_jobs, num_multiprocessors, first, count));
  }
  return ok_status();
}

}  // namespace gapless::cuda
