// The product of a decode step. Weights are the M operand of mma.m16n8k16 (16 rows of W), the
// activations its N operand (8 to 32 rows of x), so one kernel serves every number of rows at the
// speed of reading W.
//
//   block  = 8 computing warps + 2 copying threads, one for W and one for x (a thread issues a copy
//   in
//            some 100 cycles, and a stage has 800). Each block (or cluster, below) owns a range of
//            16-row tiles of W and walks it in groups of up to kGroupTiles tiles.
//   stage  = 128 columns of the group's tiles and of x, in shared memory, filled by the copy
//   engine. warp w = the w-th 16 columns of every stage. ranks  = where W has few rows (N / 16
//   tiles would leave multiprocessors idle), a cluster of four
//            blocks shares a range, each taking a quarter of the columns.
//   slices = more than 32 rows of x are divided among blocks that read the same weights side by
//   side.
//
// Row invariance: an output is the sum over a warp's stages in order, then over warps 0..7 in
// order, then over ranks 0..3 in order. None of it depends on the number of rows, on the row's
// place among them, on how tiles are grouped, or on whether the weights are prepared.
//
// Prepared weights (row_linear.h) arrive in contiguous 4 KB blocks, a quarter faster than boxes of
// a row-major matrix: the memory likes long runs. Those of the first stages are asked for before
// wait_for_predecessor: weights are never written in a step.
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
constexpr int kColumnWarps = 4;  // over which a stage's columns are divided
constexpr int kTileHalves = 2;   // and over which the group's tiles are
constexpr int kWarpTiles = kGroupTiles / kTileHalves;
constexpr int kComputeWarps = kColumnWarps * kTileHalves;
constexpr int kComputeThreads = kComputeWarps * kWarp;
constexpr int kThreads = kComputeThreads + 2 * kWarp;
constexpr int kStageColumns = 128;
constexpr int kBoxesPerStage = kStageColumns / kBoxColumns;
constexpr int kBoxRowBytes = kBoxColumns * 2;
constexpr int kTileBoxBytes = kTileRows * kBoxRowBytes;
constexpr int kTileBytes = kBoxesPerStage * kTileBoxBytes;  // one tile of one stage
constexpr int kFragments = kStageColumns / 16;
constexpr int kFragmentBytes = 16 * kTileRows * 2;  // 16 columns of a tile
static_assert(kTileRows == kPreparedTileRows && kStageColumns == kPreparedTileColumns);
constexpr int kReduceRows = 16;   // columns of sums (a row of x, a tile) per half reduced at a time
constexpr int kReducePitch = 20;  // floats per such column: 16 and padding
constexpr int kMaxSliceRows = 32;
constexpr int kColumnRanks = 4;
static_assert(kColumnRanks == kGroupTiles);  // each sums one tile of the cluster's only group

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
};

struct Launch {
  CUtensorMap weight_maps[kMaxRowLinearJobs];
  CUtensorMap x_maps[kMaxRowLinearJobs];
  Job jobs[kMaxRowLinearJobs];
  int num_rows;
  int num_slices;
  int num_ranks;  // blocks of a cluster, over which columns are split
};

// Shared memory of a block, in bytes from its 1024-byte aligned start.
template <int kRows>
struct Layout {
  static constexpr int kXBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kWeightBytes = kGroupTiles * kTileBytes;
  static constexpr int kStageBytes = kWeightBytes + kBoxesPerStage * kXBoxBytes;
  static constexpr int kReduceBytes = kComputeWarps * kReduceRows * kReducePitch * 4;
  // Two blocks fit on a multiprocessor, so that the next kernel's weights arrive while this one
  // ends.
  static constexpr int kBudget = 112 << 10;
  static constexpr int kNumStages = (kBudget - kReduceBytes - 256) / kStageBytes;
  static constexpr int kReduce = kNumStages * kStageBytes;
  static constexpr int kBarriers = kReduce + kReduceBytes;
  static constexpr int kBytes = kBarriers + 2 * kNumStages * 8 + 1024;
  static_assert(kNumStages >= 3 && kNumStages <= 16);
  // Sums of a cluster's only group, left for the other ranks in the stages when those are used up.
  static constexpr int kPartialBytes = kGroupTiles * kTileRows * kRows * 4;
  static_assert(kPartialBytes <= kReduce);
};

struct TileRange {
  int begin, end;

  __host__ __device__ static TileRange of_cluster(int cluster, int num_clusters, int num_tiles) {
    const std::int64_t tiles = num_tiles;
    return {static_cast<int>(cluster * tiles / num_clusters),
            static_cast<int>((cluster + 1) * tiles / num_clusters)};
  }
  // Groups differ by one tile at most: a small one would leave too few bytes on their way.
  __host__ __device__ int num_groups() const {
    return (end - begin + kGroupTiles - 1) / kGroupTiles;
  }
  __host__ __device__ int group_begin(int group) const {
    return begin + group * (end - begin) / num_groups();
  }
  __host__ __device__ int group_size(int group) const {
    return group_begin(group + 1) - group_begin(group);
  }
  __host__ __device__ int group_of(int tile) const {
    return ((tile - begin + 1) * num_groups() - 1) / (end - begin);
  }
};

// How the weights of a shape are divided. A property of the shape (and, for clusters without ranks,
// of the device, which then decides no order of sums).
struct Division {
  int num_ranks, num_clusters;

  static Division of(int most_tiles, int fewest_stages, int num_multiprocessors) {
    if (most_tiles <= 128 && fewest_stages >= 2 * kColumnRanks) {
      return {kColumnRanks, (most_tiles + kGroupTiles - 1) / kGroupTiles};
    }
    return {1, most_tiles < num_multiprocessors ? most_tiles : num_multiprocessors};
  }
};

__host__ __device__ constexpr int tiles_of(int out) {
  return (out + kTileRows - 1) / kTileRows;
}
__host__ __device__ constexpr int stages_of(int in) {
  return (in + kStageColumns - 1) / kStageColumns;
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

// Where an output of the block goes, and what is added to it: read early, because the bias comes
// from far and the sums are ready at the very end.
struct Output {
  std::int32_t at = -1;  // in y; -1: no such output
  float bias = 0;
  float residual = 0;
  bool gelu = false;

  __device__ static Output find(const Job& job, int num_rows, int row, int column) {
    Output output;
    if (row >= num_rows || column >= job.out) return output;
    output.at = static_cast<std::int32_t>(row * job.y_stride) + column;
    output.gelu = column >= job.gelu_begin;
    if (job.bias != nullptr) output.bias = __bfloat162float(job.bias[column]);
    if (job.residual != nullptr) {
      output.residual =
          __bfloat162float(job.residual[row % job.residual_rows * job.residual_stride + column]);
    }
    return output;
  }

  // Activation, residual and the one rounding.
  __device__ void store(const Job& job, float sum) const {
    if (at < 0) return;
    sum += bias;
    if (gelu) sum = gelu_tanh(sum);
    sum += residual;
    if (job.y_is_float) {
      static_cast<float*>(job.y)[at] = sum;
    } else {
      static_cast<Bf16*>(job.y)[at] = __float2bfloat16_rn(sum);
    }
  }
};

// The stages of one block, in the order in which they are filled and used: group after group, each
// over this rank's share of the columns.
struct StageWalk {
  TileRange tiles;
  int first_stage, num_stages;

  __device__ int total() const { return tiles.num_groups() * num_stages; }
};

// What a block works on.
struct Work {
  const Job& job;
  const CUtensorMap* weight_map;
  const CUtensorMap* x_map;
  StageWalk walk;
  int first_row;  // of x and y
};

// Waits until the consumers have left the slot of this step.
template <int kRows>
__device__ void wait_for_slot(std::uint32_t shared, int step) {
  using L = Layout<kRows>;
  if (step < L::kNumStages) return;
  const std::uint32_t empty = shared + L::kBarriers + L::kNumStages * 8;
  wait_barrier(empty + step % L::kNumStages * 8, (step / L::kNumStages - 1) & 1);
}

template <int kRows>
__device__ void copy_weights(const Work& work, std::uint32_t shared) {
  using L = Layout<kRows>;
  const TileRange& tiles = work.walk.tiles;
  int step = 0;
  for (int group = 0; group < tiles.num_groups(); ++group) {
    const int num_tiles = tiles.group_size(group);
    const std::int64_t begin = tiles.group_begin(group);
    for (int i = 0; i < work.walk.num_stages; ++i, ++step) {
      const int slot = step % L::kNumStages;
      const int column_tile = work.walk.first_stage + i;
      const std::uint32_t to = shared + slot * L::kStageBytes;
      const std::uint32_t full = shared + L::kBarriers + slot * 8;
      wait_for_slot<kRows>(shared, step);
      arrive_expecting(full, num_tiles * kTileBytes);
      if (work.job.prepared != nullptr) {
        const std::int64_t at = begin * work.job.num_stages + std::int64_t{column_tile} * num_tiles;
        copy_bytes_async(to, work.job.prepared + at * kTileBytes, num_tiles * kTileBytes, full);
        continue;
      }
      for (int box = 0; box < num_tiles * kBoxesPerStage; ++box) {
        copy_box_async(to + box * kTileBoxBytes, work.weight_map,
                       column_tile * kStageColumns + box % kBoxesPerStage * kBoxColumns,
                       static_cast<int>(begin + box / kBoxesPerStage) * kTileRows, full);
      }
    }
  }
}

template <int kRows>
__device__ void copy_x(const Work& work, std::uint32_t shared) {
  using L = Layout<kRows>;
  const int total = work.walk.total();
  for (int step = 0; step < total; ++step) {
    const int slot = step % L::kNumStages;
    const int column = (work.walk.first_stage + step % work.walk.num_stages) * kStageColumns;
    const std::uint32_t to = shared + slot * L::kStageBytes + L::kWeightBytes;
    const std::uint32_t full = shared + L::kBarriers + slot * 8;
    wait_for_slot<kRows>(shared, step);
    arrive_expecting(full, kBoxesPerStage * L::kXBoxBytes);
    for (int box = 0; box < kBoxesPerStage; ++box) {
      copy_box_async(to + box * L::kXBoxBytes, work.x_map, column + box * kBoxColumns,
                     work.first_row, full);
    }
  }
}

template <int kRows>
using Accumulators = float[kWarpTiles][kRows / 8][4];

// One warp's 16 columns of one box (64 columns) of one stage.
template <int kRows>
__device__ __forceinline__ void multiply_box(Accumulators<kRows>& sums, std::uint32_t stage,
                                             int box, int num_tiles, bool prepared) {
  using L = Layout<kRows>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int column_warp = warp % kColumnWarps, first_tile = warp / kColumnWarps * kWarpTiles;
  const int chunk = column_warp * 2;  // this warp's first 16-byte chunk of the box's rows

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
  // W: prepared tiles hold each lane's fragment in one piece; boxes are swizzled rows.
  const int a_row = lane % 16;
  const std::uint32_t a_offset =
      prepared
          ? (box * kColumnWarps + column_warp) * kFragmentBytes + lane * 16
          : box * kTileBoxBytes + a_row * kBoxRowBytes + (((chunk + lane / 16) ^ (a_row & 7)) << 4);
#pragma unroll
  for (int tile = 0; tile < kWarpTiles; ++tile) {
    if (first_tile + tile >= num_tiles) break;
    std::uint32_t a[4];
    const std::uint32_t from = stage + (first_tile + tile) * kTileBytes + a_offset;
    if (prepared) {
      load_shared_16(a, from);
    } else {
      ldmatrix_x4(a, from);
    }
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) mma_k16(sums[tile][n], a, b[n][0], b[n][1]);
  }
}

// The outputs of a group are summed over the warps in kPasses passes; in each, a thread takes one
// output of either half of the tiles.
template <int kRows>
struct Passes {
  static constexpr int kBlocksPerTile = kRows / 8;  // of eight columns of sums
  static constexpr int kBlocksAtOnce = kReduceRows / 8;
  static constexpr int kPasses = kWarpTiles * kBlocksPerTile / kBlocksAtOnce;

  __device__ static int tile_row() { return threadIdx.x % kTileRows; }
  // This thread's tile and row of x.
  __device__ static int block(int pass) {
    return pass * kBlocksAtOnce + threadIdx.x / kTileRows / 8;
  }
  __device__ static int tile(int pass, int half) {
    return half * kWarpTiles + block(pass) / kBlocksPerTile;
  }
  __device__ static int row(int pass) {
    return block(pass) % kBlocksPerTile * 8 + threadIdx.x / kTileRows % 8;
  }
};

// `use(pass, half, sum)` is called once for each of this thread's outputs.
template <int kRows, typename Use>
__device__ __forceinline__ void add_up_warps(const Accumulators<kRows>& sums, float* buffer,
                                             const Use& use) {
  using P = Passes<kRows>;
  static_assert(kReduceRows * kTileRows == kComputeThreads);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float* mine = buffer + warp * kReduceRows * kReducePitch;
#pragma unroll
  for (int pass = 0; pass < P::kPasses; ++pass) {
    if (pass > 0) named_barrier(1, kComputeThreads);  // the buffer has been read
#pragma unroll
    for (int i = 0; i < P::kBlocksAtOnce; ++i) {
      const int block = pass * P::kBlocksAtOnce + i;
      const float(&c)[4] = sums[block / P::kBlocksPerTile][block % P::kBlocksPerTile];
      float* to = mine + (i * 8 + (lane % 4) * 2) * kReducePitch + lane / 4;
      to[0] = c[0];
      to[kReducePitch] = c[1];
      to[8] = c[2];
      to[kReducePitch + 8] = c[3];
    }
    named_barrier(1, kComputeThreads);
#pragma unroll
    for (int half = 0; half < kTileHalves; ++half) {
      const float* from = buffer + half * kColumnWarps * kReduceRows * kReducePitch +
                          threadIdx.x / kTileRows * kReducePitch + P::tile_row();
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kColumnWarps; ++w) sum += from[w * kReduceRows * kReducePitch];
      use(pass, half, sum);
    }
  }
  named_barrier(1, kComputeThreads);
}

// The computing warps. With several ranks the sums of the one group are left in `partial`.
template <int kRows>
__device__ void multiply(const Work& work, const Launch& launch, std::uint32_t shared,
                         float* reduce_buffer, float* partial) {
  using L = Layout<kRows>;
  using P = Passes<kRows>;
  const TileRange& tiles = work.walk.tiles;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  const int lane = threadIdx.x % kWarp;
  const bool prepared = work.job.prepared != nullptr;
  int step = 0;
  for (int group = 0; group < tiles.num_groups(); ++group) {
    const int num_tiles = tiles.group_size(group);
    Output outputs[P::kPasses][kTileHalves];
    if (launch.num_ranks == 1) {
#pragma unroll
      for (int pass = 0; pass < P::kPasses; ++pass) {
#pragma unroll
        for (int half = 0; half < kTileHalves; ++half) {
          const int tile = P::tile(pass, half);
          if (tile >= num_tiles) continue;
          outputs[pass][half] =
              Output::find(work.job, launch.num_rows, work.first_row + P::row(pass),
                           (tiles.group_begin(group) + tile) * kTileRows + P::tile_row());
        }
      }
    }
    Accumulators<kRows> sums = {};
    for (int i = 0; i < work.walk.num_stages; ++i, ++step) {
      const int slot = step % L::kNumStages;
      wait_barrier(full + slot * 8, (step / L::kNumStages) & 1);
#pragma unroll
      for (int box = 0; box < kBoxesPerStage; ++box) {
        multiply_box<kRows>(sums, shared + slot * L::kStageBytes, box, num_tiles, prepared);
      }
      __syncwarp();
      if (lane == 0) arrive(empty + slot * 8);
    }
    // All warps are through with the stages before `partial` takes their place.
    if (launch.num_ranks > 1) named_barrier(1, kComputeThreads);
    add_up_warps<kRows>(sums, reduce_buffer, [&](int pass, int half, float sum) {
      if (launch.num_ranks == 1) {
        outputs[pass][half].store(work.job, sum);
      } else {
        partial[(P::tile(pass, half) * kRows + P::row(pass)) * kTileRows + P::tile_row()] = sum;
      }
    });
  }
}

// Rank r sums tile r of the cluster's group over the ranks.
template <int kRows>
struct RankOutputs {
  static constexpr int kPerThread = (kRows * kTileRows + kComputeThreads - 1) / kComputeThreads;
  Output outputs[kPerThread];

  __device__ static int row(int i) {
    return (i * kComputeThreads + static_cast<int>(threadIdx.x)) / kTileRows;
  }

  __device__ void find(const Work& work, const Launch& launch) {
    const TileRange& tiles = work.walk.tiles;
    const int tile = tiles.begin + static_cast<int>(cluster_rank());
    if (tile >= tiles.end || threadIdx.x >= kComputeThreads) return;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (row(i) >= kRows) continue;
      outputs[i] = Output::find(work.job, launch.num_rows, work.first_row + row(i),
                                tile * kTileRows + static_cast<int>(threadIdx.x) % kTileRows);
    }
  }

  __device__ void combine(const Job& job, const float* partial) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (outputs[i].at < 0) continue;
      const std::uint32_t address = shared_address(
          partial + (cluster_rank() * kRows + row(i)) * kTileRows + threadIdx.x % kTileRows);
      float sum = 0;
#pragma unroll
      for (int r = 0; r < kColumnRanks; ++r) {
        sum += __uint_as_float(load_remote_32(address_in_rank(address, r)));
      }
      outputs[i].store(job, sum);
    }
  }
};

// Blocks: x = ranges of tiles, ranks of a cluster side by side; y = job and slice of rows.
template <int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    row_linear_kernel(const __grid_constant__ Launch launch) {
  using L = Layout<kRows>;
  extern __shared__ char raw_shared[];
  char* base = raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024;
  const std::uint32_t shared = shared_address(base);
  const int job_index = blockIdx.y / launch.num_slices;
  const Job& job = launch.jobs[job_index];
  const int rank = launch.num_ranks > 1 ? cluster_rank() : 0;
  const int first_stage = rank * job.num_stages / launch.num_ranks;
  const int end_stage = (rank + 1) * job.num_stages / launch.num_ranks;
  const Work work{job,
                  &launch.weight_maps[job_index],
                  &launch.x_maps[job_index],
                  {TileRange::of_cluster(blockIdx.x / launch.num_ranks,
                                         gridDim.x / launch.num_ranks, tiles_of(job.out)),
                   first_stage, end_stage - first_stage},
                  static_cast<int>(blockIdx.y % launch.num_slices) * kRows};

  let_successor_start();
  if (threadIdx.x == kComputeThreads) {
    prefetch_tensor_map(work.x_map);
    for (int slot = 0; slot < L::kNumStages; ++slot) {
      init_barrier(shared + L::kBarriers + slot * 8, 2);
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

  auto* partial = reinterpret_cast<float*>(base);
  if (threadIdx.x == kComputeThreads) copy_weights<kRows>(work, shared);
  __syncwarp();
  wait_for_predecessor();
  if (threadIdx.x == kComputeThreads + kWarp) copy_x<kRows>(work, shared);
  __syncwarp();
  RankOutputs<kRows> rank_outputs;
  if (launch.num_ranks > 1) rank_outputs.find(work, launch);
  if (threadIdx.x < kComputeThreads) {
    multiply<kRows>(work, launch, shared, reinterpret_cast<float*>(base + L::kReduce), partial);
  }
  if (launch.num_ranks > 1) {
    cluster_barrier();
    rank_outputs.combine(job, partial);
    cluster_barrier();  // no block leaves while another reads its sums
  }
}

// One thread per lane's fragment of one mma step: 16 bytes.
__global__ void __launch_bounds__(256) prepare_kernel(PrepareLinearParams p, int num_clusters) {
  let_successor_start();
  wait_for_predecessor();
  const LinearWeights& w = p.weights;
  const std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  const int lane = i % kWarp, step = i / kWarp % kFragments;
  const std::int64_t block = i / (kWarp * kFragments);
  const int column_tile = block % stages_of(w.in), row_tile = block / stages_of(w.in);
  if (row_tile >= tiles_of(w.out)) return;
  const auto* weight = static_cast<const std::uint16_t*>(w.weight);
  std::uint32_t fragment[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const std::int64_t row = row_tile * kTileRows + lane / 4 + r % 2 * 8;
    const int column = column_tile * kStageColumns + step * 16 + lane % 4 * 2 + r / 2 * 8;
    auto at = [&](int c) -> std::uint32_t {
      return row < w.out && c < w.in ? weight[row * w.in + c] : 0u;
    };
    fragment[r] = at(column) | at(column + 1) << 16;
  }
  // The group of tiles that a block will copy together.
  const int num_tiles = tiles_of(p.total_out);
  const int tile = p.first_out / kTileRows + row_tile;
  const int cluster = static_cast<int>((std::int64_t{tile + 1} * num_clusters - 1) / num_tiles);
  const TileRange range = TileRange::of_cluster(cluster, num_clusters, num_tiles);
  const int group = range.group_of(tile);
  const int group_begin = range.group_begin(group), group_size = range.group_size(group);
  const std::int64_t to_block =
      std::int64_t{group_begin} * stages_of(p.total_in) +
      std::int64_t{p.first_in / kStageColumns + column_tile} * group_size + tile - group_begin;
  auto* to = static_cast<uint4*>(p.prepared) + to_block * (kTileBytes / 16) + step * kWarp + lane;
  *to = uint4{fragment[0], fragment[1], fragment[2], fragment[3]};
}

Status check_job(const LinearParams& params, int num_rows) {
  const bool fits = params.num_rows == num_rows && params.weights.in % kVector == 0 &&
                    params.x_stride % kVector == 0 && params.weights.in > 0;
  constexpr std::int64_t kMaxElements = 0x7fffffff;
  if (fits && params.num_rows * params.y_stride <= kMaxElements) return ok_status();
  return Status(
      StatusCode::kInvalidArgument,
      "linear: the width and the row stride of x must be multiples of 8, y below 2^31 elements");
}

template <int kRows>
Status launch_rows(Stream& stream, const Launch& params, int num_jobs, int num_blocks) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_blocks),
                                       static_cast<unsigned>(num_jobs * params.num_slices)),
                          .block = dim3(kThreads),
                          .shared_bytes = Layout<kRows>::kBytes,
                          .cluster = static_cast<unsigned>(params.num_ranks)};
  return launch("row_linear", stream, shape, row_linear_kernel<kRows>, params);
}

int slice_rows(int num_rows) {
  return num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : kMaxSliceRows;
}

Job make_job(const RowLinearJob& from, bool use_prepared) {
  const LinearParams& linear = from.linear;
  const LinearWeights& w = linear.weights;
  return {
      .prepared = static_cast<const char*>(w.prepared),
      .bias = static_cast<const Bf16*>(w.bias),
      .residual = static_cast<const Bf16*>(linear.residual),
      .residual_stride = linear.residual_stride,
      .residual_rows = linear.residual_rows,
      .y = linear.y,
      .y_stride = linear.y_stride,
      .y_is_float = linear.y_dtype == DType::kF32,
      .gelu_begin = linear.activation == Activation::kGeluTanh ? linear.activation_begin : w.out,
      .out = w.out,
      .num_stages = stages_of(w.in),
      .gate = from.gate};
}

}  // namespace

Status row_linear(Stream& stream, const RowLinearJob* jobs, int num_jobs, int num_multiprocessors) {
  Launch params = {};
  params.num_rows = jobs[0].linear.num_rows;
  const int rows = slice_rows(params.num_rows);
  params.num_slices = (params.num_rows + rows - 1) / rows;
  int most_tiles = 0, fewest_stages = stages_of(jobs[0].linear.weights.in);
  // Weights are prepared for a launch of their own.
  const bool use_prepared = num_jobs == 1 && jobs[0].linear.weights.prepared != nullptr;
  for (int i = 0; i < num_jobs; ++i) {
    const LinearParams& linear = jobs[i].linear;
    const LinearWeights& w = linear.weights;
    GAPLESS_RETURN_IF_ERROR(check_job(linear, params.num_rows));
    params.jobs[i] = make_job(jobs[i], use_prepared);
    if (!use_prepared) {
      GAPLESS_ASSIGN_OR_RETURN(params.weight_maps[i],
                               make_tensor_map(w.weight, w.out, w.in, w.in, kTileRows));
    }
    GAPLESS_ASSIGN_OR_RETURN(
        params.x_maps[i], make_tensor_map(linear.x, params.num_rows, w.in, linear.x_stride, rows));
    most_tiles = std::max(most_tiles, tiles_of(w.out));
    fewest_stages = std::min(fewest_stages, stages_of(w.in));
  }
  const Division division = Division::of(most_tiles, fewest_stages, num_multiprocessors);
  params.num_ranks = division.num_ranks;
  const int num_blocks = division.num_clusters * division.num_ranks;
  switch (rows) {
    case 8:
      return launch_rows<8>(stream, params, num_jobs, num_blocks);
    case 16:
      return launch_rows<16>(stream, params, num_jobs, num_blocks);
    default:
      return launch_rows<kMaxSliceRows>(stream, params, num_jobs, num_blocks);
  }
}

std::size_t prepared_linear_bytes(int in, int out) {
  return static_cast<std::size_t>(tiles_of(out)) * static_cast<std::size_t>(stages_of(in)) *
         kTileBytes;
}

Status prepare_linear(Stream& stream, const PrepareLinearParams& params, int num_multiprocessors) {
  if (params.first_out % kTileRows != 0 || params.first_in % kStageColumns != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "prepare_linear: a part must start at a multiple of 16 rows and 128 columns");
  }
  const Division division =
      Division::of(tiles_of(params.total_out), stages_of(params.total_in), num_multiprocessors);
  const std::int64_t fragments = std::int64_t{tiles_of(params.weights.out)} *
                                 stages_of(params.weights.in) * kWarp * kFragments;
  return launch("prepare_linear", stream,
                {.grid = dim3(blocks_for(fragments, 256)), .block = dim3(256)}, prepare_kernel,
                params, division.num_clusters);
}

}  // namespace gapless::cuda
