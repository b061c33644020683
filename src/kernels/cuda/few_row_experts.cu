// Experts for few rows, on paths without warpgroups, as two launches behind the router's product: the first chooses, multiplies with
// `up` and gates; the second multiplies with `down`, weighs, and adds the residual.
//
//   block = 8 computing warps + 4 copying warps, which take stages in turn: to ask for a stage's many small
//           copies takes a warp about as long as memory takes to bring them. It owns one tile, 16 rows of the weights' matrix, of
//           every expert that some row chose: 8 gates and their 8 ups, or 16 outputs. So blocks have
//           equal work whoever was chosen, and a block sees all that is added up to its outputs.
//   pass  = an expert's tile times the rows that chose it.
//   stage = 1 KB of each row of the tile and as many columns of the pass' rows of x, in shared memory: one or
//           two chunks of 512 columns, of which warp w takes the w-th 64. The ring of stages runs on through
//           all passes.
//
// Every block works out anew who chose whom (the route): some thousand instructions instead of two
// launches. A weight cannot be asked for sooner. The first kernel waits for its predecessor before it
// lets the second one start, so whoever made the logits is through by then: the second finds its route and
// fills its stages with weights while the first still runs.
//
// Row invariance: products as expert_product.cuh says, a row's experts added up by their indices.
#include "base/limits.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/expert_choice.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/few_row_experts.h"
#include "kernels/cuda/launch.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kFewComputeThreads = kProductThreads;
constexpr int kCopyWarps = 4;
constexpr int kFewThreads = kFewComputeThreads + kCopyWarps * kWarp;
constexpr int kFewWarps = kFewThreads / kWarp;
static_assert(kProductWarps == kNumSlices);
constexpr int kHalfTile = kTileRows / 2;
constexpr int kMaxFewPairs = kMaxFewRows * kMaxExpertsPerToken;
constexpr int kStageRowBytes = 1024;
constexpr int kElementBytes = static_cast<int>(sizeof(Bf16));
// Rows in shared memory lie further on in the banks than the row before, by what four lanes read of one: an
// access of a warp meets 128 bytes of two rows or of four at a time.
constexpr int row_pitch(int row_bytes, int lane_bytes) {
  return row_bytes + 4 * lane_bytes;
}

struct Stage {
  static constexpr int kColumns = kStageRowBytes / kElementBytes;
  static constexpr int kChunks = kColumns / kChunkColumns;
  static constexpr int kPitch = row_pitch(kStageRowBytes, 16);
  static constexpr int kXPitch = row_pitch(kColumns * kElementBytes, 16);
  static constexpr int kX = kTileRows * kPitch;
  static constexpr int kBytes = kX + kMaxFewRows * kXPitch;
};

// A pair is a row and one of its experts, numbered row * experts_per_token + choice. Places of pairs are
// counted through the experts by their indices, those of an expert by their rows.
struct Route {
  unsigned rows_of[kMaxExperts];          // bit r: row r chose it
  Bf16 weight[kMaxFewPairs];              // by pair
  std::uint8_t first_place[kMaxExperts];  // of an expert that somebody chose
  std::uint8_t experts[kMaxExperts];      // those, num_experts of them
  std::uint8_t pair_at[kMaxFewPairs];     // by place
  std::uint8_t expert[kMaxFewPairs];      // by pair
  int num_experts;
};
static_assert(kMaxFewRows <= 32 && kMaxExperts <= 256 && kMaxFewPairs <= 256);

// Shared memory of a block, in bytes.
struct FewLayout {
  static constexpr int kStageBytes = Stage::kBytes;
  // Sums of the warps, of two passes.
  static constexpr int kSumsBytes = kProductWarps * kMaxFewRows * kTileRows * 4;
  static constexpr int kOutBytes = kMaxFewRows * kTileRows * 4;  // sums over experts
  static constexpr int kFixedBytes = 2 * kSumsBytes + kOutBytes + sizeof(Route) + 128;
  static constexpr int kBudget = kSmallestSharedBytes - 1024;
  static constexpr int kNumStages = (kBudget - kFixedBytes) / kStageBytes;
  static constexpr int kSums = kNumStages * kStageBytes;
  static constexpr int kOut = kSums + 2 * kSumsBytes;
  static constexpr int kRoute = kOut + kOutBytes;
  static constexpr int kBarriers = kRoute + (sizeof(Route) + 7) / 8 * 8;
  static constexpr int kBytes = kBarriers + 2 * kNumStages * 8;
  static_assert(kNumStages >= 3 && kBytes <= kBudget);
};

struct FewExperts {
  const Bf16* logits;
  const AttentionSequence* sequences;
  int num_rows;
  int num_experts;
  int per_token;
  const Bf16* weights;  // [num_experts, out, in]
  int out;
  int in;
  const Bf16* x;  // up: [num_rows, in]; down: [places, in]
  Bf16* y;        // up: [places, out / 2]; down: [num_rows, out]
  // up
  Activation activation;
  float up_offset;
  // down
  const Bf16* residual;  // [num_rows, out]; may be y
};

__device__ void find_route(const FewExperts& p, Route& route) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int e = threadIdx.x; e < p.num_experts; e += kFewThreads) route.rows_of[e] = 0;
  __syncthreads();
  for (int row = warp; row < p.num_rows; row += kFewWarps) {
    const bool lives = p.sequences == nullptr || p.sequences[row].num_tokens > 0;
    const ExpertChoice choice =
        choose_experts(p.logits + std::int64_t{row} * p.num_experts, p.num_experts, p.per_token);
    if (lane >= p.per_token) continue;
    const int pair = row * p.per_token + lane;
    route.expert[pair] = static_cast<std::uint8_t>(choice.expert);
    route.weight[pair] = __float2bfloat16_rn(choice.weight);  // which it is rounded to
    if (lives) atomicOr(&route.rows_of[choice.expert], 1u << row);
  }
  __syncthreads();
  if (warp == 0) {
    int num_experts = 0, num_places = 0;
    for (int base = 0; base < p.num_experts; base += kWarp) {
      const int e = base + lane;
      const int rows = e < p.num_experts ? __popc(route.rows_of[e]) : 0;
      const unsigned chosen = __ballot_sync(kFullWarp, rows > 0);
      const int before = sum_of_lower_lanes(rows);
      if (rows > 0) {
        route.experts[num_experts + __popc(chosen & ((1u << lane) - 1))] =
            static_cast<std::uint8_t>(e);
        route.first_place[e] = static_cast<std::uint8_t>(num_places + before);
      }
      num_experts += __popc(chosen);
      num_places += __shfl_sync(kFullWarp, before + rows, kWarp - 1);
    }
    if (lane == 0) route.num_experts = num_experts;
  }
  __syncthreads();
  for (int pair = threadIdx.x; pair < p.num_rows * p.per_token; pair += kFewThreads) {
    const int row = pair / p.per_token, e = route.expert[pair];
    const unsigned rows = route.rows_of[e];
    if ((rows >> row & 1) == 0) continue;  // a dead row
    const int place = route.first_place[e] + __popc(rows & ((1u << row) - 1));
    route.pair_at[place] = static_cast<std::uint8_t>(pair);
  }
  __syncthreads();
}

// The stages of all passes, in order. Copying and computing warps walk alike.
struct FewWalk {
  const Route& route;
  int in;         // columns
  int index = 0;  // of the expert
  int begin = 0;  // of the stage's columns
  int step = 0;   // stages so far

  __device__ bool is_done() const { return index == route.num_experts; }
  __device__ int expert() const { return route.experts[index]; }
  __device__ int num_rows() const { return __popc(route.rows_of[expert()]); }
  __device__ int place() const { return route.first_place[expert()]; }
  __device__ int num_columns() const { return min(Stage::kColumns, in - begin); }
  __device__ bool ends_pass() const { return begin + Stage::kColumns >= in; }
  __device__ int slot() const { return step % FewLayout::kNumStages; }
  __device__ int turn() const { return step / FewLayout::kNumStages; }
  __device__ void advance() {
    ++step;
    begin += Stage::kColumns;
    if (begin < in) return;
    begin = 0;
    ++index;
  }
};

// Row of an expert's matrix that is row `i` of the block's tile; `down` may lack the last eight.
template <bool kUp>
__device__ int matrix_row(const FewExperts& p, int i) {
  if constexpr (kUp) {
    return blockIdx.x * kHalfTile + i % kHalfTile + (i < kHalfTile ? 0 : p.out / 2);
  } else {
    return blockIdx.x * kTileRows + i;
  }
}

// A copying warp, all lanes together: rows of `bytes` bytes each, a lane's each where there is a copy engine.
template <Reading kReading, typename RowOf>
__device__ void copy_rows(std::uint32_t to, int pitch, int num_rows, int bytes,
                          std::uint32_t barrier, const RowOf& row_of) {
  if constexpr (kHasCopyEngine) {
    const int row = threadIdx.x % kWarp;
    if (row < num_rows) {
      copy_bytes_async<kReading>(to + row * pitch, row_of(row), bytes, barrier);
    }
  } else {
    for (int row = 0; row < num_rows; ++row) {
      copy_bytes_async<kReading>(to + row * pitch, row_of(row), bytes, barrier);
    }
  }
}

template <bool kUp>
class FewStages {
 public:
  using Walk = FewWalk;
  using L = FewLayout;

  __device__ FewStages(const FewExperts& p, const Route& route, std::uint32_t shared)
      : p_(p), route_(route), shared_(shared) {}

  // A copying warp, of kCopyWarps.
  __device__ void fill(int warp) const {
    const auto is_own = [warp](const Walk& walk) { return walk.step % kCopyWarps == warp; };
    Walk ahead{route_, p_.in};
    // Weights alone, where they may be asked for before the predecessor is through.
    constexpr int kNumAhead = kHasCopyEngine ? L::kNumStages : 0;
    for (; ahead.step < kNumAhead && !ahead.is_done(); ahead.advance()) {
      if (is_own(ahead)) copy_weights(ahead);
    }
    wait_for_predecessor();
    for (Walk walk{route_, p_.in}; walk.step < ahead.step; walk.advance()) {
      if (is_own(walk)) copy_x(walk);
    }
    for (; !ahead.is_done(); ahead.advance()) {
      if (!is_own(ahead)) continue;
      if (ahead.turn() > 0) wait_barrier(empty(ahead.slot()), (ahead.turn() - 1) & 1);
      copy_weights(ahead);
      copy_x(ahead);
    }
  }

  __device__ std::uint32_t full(int slot) const { return shared_ + L::kBarriers + slot * 8; }
  __device__ std::uint32_t empty(int slot) const { return full(L::kNumStages + slot); }
  __device__ std::uint32_t stage(int slot) const { return shared_ + slot * L::kStageBytes; }

 private:
  __device__ void copy_weights(const Walk& walk) const {
    // The tile is two times eight rows of the matrix. The last one of `down` may lack the second eight.
    const int num_rows = matrix_row<kUp>(p_, kHalfTile) < p_.out ? kTileRows : kHalfTile;
    const int bytes = walk.num_columns() * kElementBytes;
    const std::uint32_t barrier = full(walk.slot());
    if (threadIdx.x % kWarp == 0) {
      const int x_bytes = walk.num_columns() * kElementBytes;
      expect_copies(barrier, num_rows * bytes + walk.num_rows() * x_bytes);
    }
    __syncwarp();
    const Bf16* const columns =
        p_.weights + std::int64_t{walk.expert()} * p_.out * p_.in + walk.begin;
    copy_rows<Reading::kOnce>(
        stage(walk.slot()), Stage::kPitch, num_rows, bytes, barrier,
        [&](int row) { return columns + std::int64_t{matrix_row<kUp>(p_, row)} * p_.in; });
  }

  __device__ void copy_x(const Walk& walk) const {
    const std::uint32_t barrier = full(walk.slot());
    copy_rows<Reading::kOften>(stage(walk.slot()) + Stage::kX, Stage::kXPitch, walk.num_rows(),
                               walk.num_columns() * kElementBytes, barrier, [&](int row) {
                                 const int place = walk.place() + row;
                                 const int x_row =
                                     kUp ? route_.pair_at[place] / p_.per_token : place;
                                 return p_.x + std::int64_t{x_row} * p_.in + walk.begin;
                               });
    complete_copies(barrier);
  }

  const FewExperts& p_;
  const Route& route_;
  const std::uint32_t shared_;
};

// Eight elements of a row in a stage.
__device__ __forceinline__ uint4 read_weights(std::uint32_t address) {
  std::uint32_t raw[4];
  load_shared(raw, address);
  return {raw[0], raw[1], raw[2], raw[3]};
}

// The sums of a warp's slice of a stage's columns.
__device__ __forceinline__ void multiply_few(float (&sums)[4], std::uint32_t stage, int num_columns,
                                             int num_rows) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::uint32_t weights = stage + lane / 4 * Stage::kPitch;
  const std::uint32_t x_row = stage + Stage::kX + lane / 4 * Stage::kXPitch;
#pragma unroll
  for (int chunk = 0; chunk < Stage::kChunks; ++chunk) {
#pragma unroll
    for (int s = 0; s < kStepsPerSlice; ++s) {
      const int column =
          chunk * kChunkColumns + warp * kSliceColumns + s * kStepColumns + lane % 4 * kVector;
      uint4 low = {}, high = {};
      std::uint32_t x[4] = {};
      if (column < num_columns) {
        const std::uint32_t from = weights + column * kElementBytes;
        low = read_weights(from);
        high = read_weights(from + kHalfTile * Stage::kPitch);
        if (lane / 4 < num_rows) load_shared(x, x_row + column * kElementBytes);
      }
      multiply_step(sums, low, high, {x[0], x[1], x[2], x[3]});
    }
  }
}

// The computing warps. use(walk, row of the pass, row of the tile, sum) is called by the first two warps
// together, also for rows that the pass does not have.
template <bool kUp, typename Use>
__device__ void multiply_passes(const FewExperts& p, const Route& route,
                                const FewStages<kUp>& stages, float* sums_buffer, const Use& use) {
  constexpr int kSums = kMaxFewRows * kTileRows;  // of a warp
  static_assert(kSums % kWarp == 0 && kSums <= kFewComputeThreads);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int own_row = threadIdx.x / kTileRows, own_tile_row = threadIdx.x % kTileRows;
  float sums[4] = {};
  int pass = 0;
  for (FewWalk walk{route, p.in}; !walk.is_done(); walk.advance()) {
    const int slot = walk.slot();
    wait_barrier(stages.full(slot), walk.turn() & 1);
    multiply_few(sums, stages.stage(slot), walk.num_columns(), walk.num_rows());
    __syncwarp();
    if (lane == 0) arrive(stages.empty(slot));
    if (!walk.ends_pass()) continue;
    // Two buffers in turn: who still reads one is met at the other's barrier.
    float* const buffer = sums_buffer + pass % 2 * kProductWarps * kSums;
    ++pass;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane % 4 * 2 + i % 2, tile_row = lane / 4 + i / 2 * kHalfTile;
      if (row < kMaxFewRows) buffer[warp * kSums + row * kTileRows + tile_row] = sums[i];
      sums[i] = 0;
    }
    named_barrier(1, kFewComputeThreads);
    if (threadIdx.x >= kSums) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kProductWarps; ++w) sum += buffer[w * kSums + threadIdx.x];
    use(walk, own_row, own_tile_row, sum);
  }
}

// Blocks: x = tile.
template <bool kUp>
__global__ void __launch_bounds__(kFewThreads, 2) few_row_experts_kernel(FewExperts p) {
  using L = FewLayout;
  extern __shared__ __align__(16) char raw_shared[];
  Route& route = *reinterpret_cast<Route*>(raw_shared + L::kRoute);
  auto* const sums_buffer = reinterpret_cast<float*>(raw_shared + L::kSums);
  auto* const out = reinterpret_cast<float*>(raw_shared + L::kOut);
  const FewStages<kUp> stages(p, route, shared_address(raw_shared));
  if constexpr (kUp) wait_for_predecessor();
  let_successor_start();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < L::kNumStages; ++slot) {
      init_barrier(stages.full(slot), 1);
      init_barrier(stages.empty(slot), kProductWarps);
    }
    fence_barrier_init();
  }
  if constexpr (!kUp) {
    for (int i = threadIdx.x; i < p.num_rows * kTileRows; i += kFewThreads) out[i] = 0;
  }
  find_route(p, route);

  if (threadIdx.x >= kFewComputeThreads) {
    stages.fill(threadIdx.x / kWarp - kProductWarps);
    return;
  }
  wait_for_predecessor();
  multiply_passes<kUp>(
      p, route, stages, sums_buffer, [&](const FewWalk& walk, int row, int tile_row, float sum) {
        const int place = walk.place() + row;
        if constexpr (kUp) {
          // Of a gate: its up lies eight lanes on.
          const float up = __shfl_down_sync(kFullWarp, sum, kHalfTile);
          if (row >= walk.num_rows() || tile_row >= kHalfTile) return;
          const float gate = activate(p.activation, round_to_bf16(sum));
          p.y[std::int64_t{place} * (p.out / 2) + blockIdx.x * kHalfTile + tile_row] =
              __float2bfloat16_rn(gate * (round_to_bf16(up) + p.up_offset));
        } else {
          if (row >= walk.num_rows()) return;
          const int pair = route.pair_at[place];
          float& to = out[pair / p.per_token * kTileRows + tile_row];
          to = fmaf(__bfloat162float(route.weight[pair]), round_to_bf16(sum), to);
        }
      });
  if constexpr (!kUp) {
    named_barrier(1, kFewComputeThreads);
    for (int i = threadIdx.x; i < p.num_rows * kTileRows; i += kFewComputeThreads) {
      const int row = i / kTileRows, column = blockIdx.x * kTileRows + i % kTileRows;
      if (column >= p.out) continue;
      const std::int64_t at = std::int64_t{row} * p.out + column;
      p.y[at] = __float2bfloat16_rn(out[i] + __bfloat162float(p.residual[at]));
    }
  }
}

template <bool kUp>
Status launch_few(const char* name, Stream& stream, int num_tiles, const FewExperts& params) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_tiles)),
                          .block = dim3(kFewThreads),
                          .shared_bytes = FewLayout::kBytes};
  return launch(name, stream, shape, few_row_experts_kernel<kUp>, params);
}

// Weights and what x and y are as wide as.
void set_weights(FewExperts& p, const LinearWeights& weights) {
  p.weights = static_cast<const Bf16*>(weights.weight);
  p.out = weights.out;
  p.in = weights.in;
}

}  // namespace

Status few_row_experts(Stream& stream, const ExpertsParams& params, Bf16* inner) {
  const FeedForward& ff = params.ff;
  FewExperts p = {};
  p.logits = static_cast<const Bf16*>(params.logits);
  p.sequences = params.sequences;
  p.num_rows = params.num_rows;
  p.num_experts = ff.num_experts;
  p.per_token = ff.experts_per_token;
  if (params.half != ExpertsHalf::kSecond) {
    set_weights(p, ff.up);
    p.x = static_cast<const Bf16*>(params.x);
    p.y = inner;
    p.activation = ff.activation;
    p.up_offset = ff.up_offset;
    GAPLESS_RETURN_IF_ERROR(
        launch_few<true>("experts up, few rows", stream, ff.inner() / kHalfTile, p));
  }
  if (params.half == ExpertsHalf::kFirst) return ok_status();
  set_weights(p, ff.down);
  p.x = inner;
  p.y = static_cast<Bf16*>(params.y);
  p.residual = static_cast<const Bf16*>(params.residual);
  return launch_few<false>("experts down, few rows", stream,
                           (ff.down.out + kTileRows - 1) / kTileRows, p);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
