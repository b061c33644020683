// Experts for few rows as two launches behind the router's product: the first chooses, multiplies with
// `up` and gates; the second multiplies with `down`, weighs, and adds the residual.
//
//   block = 8 computing warps + 1 copying warp. It owns one tile, 16 rows of the weights' matrix, of
//           every expert that some row chose: 8 gates and their 8 ups, or 16 outputs. So blocks have
//           equal work whoever was chosen, and a block sees all that is added up to its outputs.
//   pass  = an expert's tile times up to 16 of the rows that chose it. An expert with more rows has its
//           tile read again, from the second-level cache.
//   stage = 1 KB of each row of the tile, in shared memory: one or two chunks of 512 columns, of which warp w
//           takes the w-th 64. The ring of stages runs on through all passes. x is read from the
//           second-level cache straight into registers, a stage ahead.
//
// Every block works out anew who chose whom (the route): some thousand instructions instead of two
// launches. A weight cannot be asked for sooner. The first kernel waits for its predecessor before it
// lets the second one start, so whoever made the logits is through by then: the second finds its route and
// fills its stages while the first still runs.
//
// Row invariance: products as expert_product.cuh says, a row's experts added up by their indices.
#include "base/limits.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/expert_choice.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/expert_weights.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/few_row_experts.h"
#include "kernels/cuda/launch.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kFewComputeThreads = kProductThreads;
constexpr int kFewThreads = kFewComputeThreads + kWarp;
constexpr int kFewWarps = kFewThreads / kWarp;
static_assert(kProductWarps == kNumSlices && kMaxSeats <= kMaxFewRows);
constexpr int kPassRows = 16;
constexpr int kHalfTile = kTileRows / 2;
constexpr int kMaxFewPairs = kMaxFewRows * kMaxExpertsPerToken;
constexpr int kStageRowBytes = 1024;
constexpr int kFewStageBytes = kTileRows * (kStageRowBytes + 64);

template <typename Weights>
struct StageOf {
  static constexpr int kColumns = kStageRowBytes / Weights::kElementBytes;
  static constexpr int kChunks = kColumns / kChunkColumns;
  // Rows lie further on in the banks than the row before, by what four lanes read of one: an access of a
  // warp meets 128 bytes of two rows or of four at a time.
  static constexpr int kPitch =
      kStageRowBytes + 4 * static_cast<int>(sizeof(typename Weights::Raw));
  static_assert(kTileRows * kPitch <= kFewStageBytes);
};

// A pair is a row and one of its experts, numbered row * experts_per_token + choice. Places of pairs are
// counted through the experts by their indices, those of an expert by their rows.
struct Route {
  unsigned long long rows_of[kMaxExperts];  // bit r: row r chose it
  float weight[kMaxFewPairs];               // by pair
  std::uint16_t first_place[kMaxExperts];   // of an expert that somebody chose
  std::uint16_t experts[kMaxExperts];       // those, num_experts of them
  std::uint16_t pair_at[kMaxFewPairs];      // by place
  std::uint8_t expert[kMaxFewPairs];        // by pair
  int num_experts;
};
static_assert(kMaxFewRows <= 64 && kMaxExperts <= 256);

// Shared memory of a block, in bytes.
struct FewLayout {
  static constexpr int kOutBytes = kMaxFewRows * kTileRows * 4;  // sums over experts
  static constexpr int kFixedBytes = kReduceBytes + kOutBytes + sizeof(Route) + 256;
  // As row_linear's: two blocks fit on a multiprocessor of 9.0a.
  static constexpr int kBudget = kPath.has_warpgroups ? 112 << 10 : kSmallestSharedBytes - 1024;
  static constexpr int kNumStages = (kBudget - kFixedBytes) / kFewStageBytes;
  static constexpr int kReduce = kNumStages * kFewStageBytes;
  static constexpr int kOut = kReduce + kReduceBytes;
  static constexpr int kRoute = kOut + kOutBytes;
  static constexpr int kBarriers = kRoute + (sizeof(Route) + 7) / 8 * 8;
  static constexpr int kBytes = kBarriers + 2 * kNumStages * 8;
  static_assert(kNumStages >= 4 && kBytes <= kBudget);
};

struct FewExperts {
  const Bf16* logits;
  const AttentionSequence* sequences;
  int num_rows;
  int num_experts;
  int per_token;
  const char* weights;  // [num_experts, out, in], rows 2 * in bytes apart
  const float* scales;  // [num_experts, out]; nullptr: weights are T
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
    route.weight[pair] = choice.weight;
    if (lives) atomicOr(&route.rows_of[choice.expert], 1ull << row);
  }
  __syncthreads();
  if (warp == 0) {
    int num_experts = 0, num_places = 0;
    for (int base = 0; base < p.num_experts; base += kWarp) {
      const int e = base + lane;
      const int rows = e < p.num_experts ? __popcll(route.rows_of[e]) : 0;
      const unsigned chosen = __ballot_sync(kFullWarp, rows > 0);
      int up_to_here = rows;
#pragma unroll
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int before = __shfl_up_sync(kFullWarp, up_to_here, offset);
        if (lane >= offset) up_to_here += before;
      }
      if (rows > 0) {
        route.experts[num_experts + __popc(chosen & ((1u << lane) - 1))] =
            static_cast<std::uint16_t>(e);
        route.first_place[e] = static_cast<std::uint16_t>(num_places + up_to_here - rows);
      }
      num_experts += __popc(chosen);
      num_places += __shfl_sync(kFullWarp, up_to_here, kWarp - 1);
    }
    if (lane == 0) route.num_experts = num_experts;
  }
  __syncthreads();
  for (int pair = threadIdx.x; pair < p.num_rows * p.per_token; pair += kFewThreads) {
    const int row = pair / p.per_token, e = route.expert[pair];
    const unsigned long long rows = route.rows_of[e];
    if ((rows >> row & 1) == 0) continue;  // a dead row
    const int place = route.first_place[e] + __popcll(rows & ((1ull << row) - 1));
    route.pair_at[place] = static_cast<std::uint16_t>(pair);
  }
  __syncthreads();
}

// The passes of all experts, in order. Copying and computing warps walk alike.
struct PassWalk {
  const Route& route;
  int index = 0;  // of the expert
  int first = 0;  // of the pass' pairs among the expert's

  __device__ bool is_done() const { return index == route.num_experts; }
  __device__ int expert() const { return route.experts[index]; }
  __device__ int num_left() const { return __popcll(route.rows_of[expert()]) - first; }
  __device__ int num_rows() const { return min(kPassRows, num_left()); }
  __device__ int place() const { return route.first_place[expert()] + first; }
  __device__ void advance() {
    if (num_left() > kPassRows) {
      first += kPassRows;
    } else {
      ++index;
      first = 0;
    }
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

// The copying lanes.
template <bool kUp, typename Weights>
__device__ void fill_few_stages(const FewExperts& p, const Route& route, std::uint32_t shared) {
  using L = FewLayout;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  // The tile is two times eight rows of the matrix. The last one of `down` may lack the second eight.
  const int low_row = matrix_row<kUp>(p, 0), high_row = matrix_row<kUp>(p, kHalfTile);
  const int num_rows = high_row < p.out ? kTileRows : kHalfTile;
  int step = 0;
  for (PassWalk pass{route}; !pass.is_done(); pass.advance()) {
    const std::int64_t row_bytes = std::int64_t{2} * p.in;
    const char* const matrix = p.weights + pass.expert() * p.out * row_bytes;
    const char* const low = matrix + low_row * row_bytes;
    const char* const high = matrix + high_row * row_bytes;
    const int num_bytes = p.in * Weights::kElementBytes;
    for (int begin = 0; begin < num_bytes; begin += kStageRowBytes, ++step) {
      const int slot = step % L::kNumStages;
      const int bytes = min(kStageRowBytes, num_bytes - begin);
      if (step >= L::kNumStages) {
        wait_barrier(empty + slot * 8, (step / L::kNumStages - 1) & 1);
      }
      expect_copies(full + slot * 8, num_rows * bytes);
      const std::uint32_t stage = shared + slot * kFewStageBytes;
#pragma unroll
      for (int i = 0; i < kTileRows; ++i) {
        const char* const from = (i < kHalfTile ? low : high) + i % kHalfTile * row_bytes + begin;
        if (i < num_rows) {
          copy_bytes_async<Reading::kOnce>(stage + i * StageOf<Weights>::kPitch, from, bytes,
                                           full + slot * 8);
        }
      }
      complete_copies(full + slot * 8);
    }
  }
}

// Eight elements of a row in a stage.
template <typename Weights>
__device__ __forceinline__ uint4 read_weights(std::uint32_t address) {
  std::uint32_t raw[sizeof(typename Weights::Raw) / 4];
  load_shared(raw, address);
  if constexpr (Weights::kElementBytes == 1) {
    return Weights::widen(uint2{raw[0], raw[1]});
  } else {
    return Weights::widen(uint4{raw[0], raw[1], raw[2], raw[3]});
  }
}

// A lane's operands of x for one stage.
template <typename Weights>
struct StageX {
  uint4 values[StageOf<Weights>::kChunks][kStepsPerSlice][kPassRows / 8];
};

// Reads x, stage after stage, for who asks for a stage before it computes the one before.
template <bool kUp, typename Weights>
class XReader {
 public:
  __device__ XReader(const FewExperts& p, const Route& route) : p_(p), pass_{route} { find_rows(); }

  // Nothing behind the last stage.
  __device__ void read(StageX<Weights>& x) {
    if (pass_.is_done()) return;
    using Stage = StageOf<Weights>;
    const int lane_column = lane_column_of_slice();
#pragma unroll
    for (int chunk = 0; chunk < Stage::kChunks; ++chunk) {
#pragma unroll
      for (int s = 0; s < kStepsPerSlice; ++s) {
        const int column = begin_ + chunk * kChunkColumns + lane_column + s * kStepColumns;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const bool valid = rows_[n] != nullptr && column < p_.in;
          x.values[chunk][s][n] =
              valid ? *reinterpret_cast<const uint4*>(rows_[n] + column) : uint4{};
        }
      }
    }
    begin_ += Stage::kColumns;
    if (begin_ < p_.in) return;
    begin_ = 0;
    pass_.advance();
    find_rows();
  }

  // Of the first column that the lane reads of its warp's slice.
  __device__ static int lane_column_of_slice() {
    return threadIdx.x / kWarp * kSliceColumns + threadIdx.x % 4 * kVector;
  }

 private:
  static constexpr int kBlocks = kPassRows / 8;

  __device__ void find_rows() {
    if (pass_.is_done()) return;
    const int num_rows = pass_.num_rows();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const int row = n * 8 + threadIdx.x % kWarp / 4, place = pass_.place() + row;
      rows_[n] = nullptr;
      if (row >= num_rows) continue;
      const int x_row = kUp ? pass_.route.pair_at[place] / p_.per_token : place;
      rows_[n] = p_.x + std::int64_t{x_row} * p_.in;
    }
  }

  const FewExperts& p_;
  PassWalk pass_;
  int begin_ = 0;
  const Bf16* rows_[kBlocks];  // nullptr: the pass has no such row
};

// The computing warps. use(pass, row of the pass, row of the tile, sum) is called by all of them
// together, also for rows that the pass does not have.
template <bool kUp, typename Weights, typename Use>
__device__ void multiply_passes(const FewExperts& p, const Route& route, std::uint32_t shared,
                                float* reduce_buffer, const Use& use) {
  using L = FewLayout;
  using Stage = StageOf<Weights>;
  using Reader = XReader<kUp, Weights>;
  const std::uint32_t full = shared + L::kBarriers, empty = full + L::kNumStages * 8;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int lane_column = Reader::lane_column_of_slice();
  Reader reader(p, route);
  StageX<Weights> x, next_x;
  reader.read(next_x);
  int step = 0;
  for (PassWalk pass{route}; !pass.is_done(); pass.advance()) {
    const int num_rows = pass.num_rows();
    // Of the row of the tile whose sum this thread will have.
    float scale = 1;
    if (p.scales != nullptr) {
      const int row = matrix_row<kUp>(p, threadIdx.x % kTileRows);
      if (row < p.out) scale = p.scales[std::int64_t{pass.expert()} * p.out + row];
    }
    Accumulators<kPassRows> sums = {};
    for (int begin = 0; begin < p.in; begin += Stage::kColumns, ++step) {
      x = next_x;
      reader.read(next_x);
      const int slot = step % L::kNumStages;
      wait_barrier(full + slot * 8, (step / L::kNumStages) & 1);
      const std::uint32_t lane_rows = shared + slot * kFewStageBytes + lane / 4 * Stage::kPitch;
#pragma unroll
      for (int chunk = 0; chunk < Stage::kChunks; ++chunk) {
#pragma unroll
        for (int s = 0; s < kStepsPerSlice; ++s) {
          const int column = chunk * kChunkColumns + lane_column + s * kStepColumns;
          uint4 low = {}, high = {};
          if (begin + column < p.in) {
            const std::uint32_t from = lane_rows + column * Weights::kElementBytes;
            low = read_weights<Weights>(from);
            high = read_weights<Weights>(from + kHalfTile * Stage::kPitch);
          }
#pragma unroll
          for (int n = 0; n < kPassRows / 8; ++n) {
            if (n * 8 < num_rows) multiply_step(sums[0][n], low, high, x.values[chunk][s][n]);
          }
        }
      }
      __syncwarp();
      if (lane == 0) arrive(empty + slot * 8);
    }
    reduce_warps<kPassRows>(
        sums, 1, warp, reduce_buffer,
        [&](int, int row, int tile_row, float sum) { use(pass, row, tile_row, sum * scale); });
  }
}

// Blocks: x = tile.
template <bool kUp, typename Weights>
__global__ void __launch_bounds__(kFewThreads, 2) few_row_experts_kernel(FewExperts p) {
  using L = FewLayout;
  extern __shared__ char raw_shared[];
  const std::uint32_t shared = shared_address(raw_shared);
  Route& route = *reinterpret_cast<Route*>(raw_shared + L::kRoute);
  auto* const reduce_buffer = reinterpret_cast<float*>(raw_shared + L::kReduce);
  auto* const out = reinterpret_cast<float*>(raw_shared + L::kOut);
  if constexpr (kUp) wait_for_predecessor();
  let_successor_start();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < L::kNumStages; ++slot) {
      init_barrier(shared + L::kBarriers + slot * 8, 1);
      init_barrier(shared + L::kBarriers + (L::kNumStages + slot) * 8, kProductWarps);
    }
    fence_barrier_init();
  }
  if constexpr (!kUp) {
    for (int i = threadIdx.x; i < p.num_rows * kTileRows; i += kFewThreads) out[i] = 0;
  }
  find_route(p, route);

  if (threadIdx.x >= kFewComputeThreads) {
    if (is_copying_lane()) fill_few_stages<kUp, Weights>(p, route, shared);
    __syncwarp();
    wait_for_predecessor();
    return;
  }
  wait_for_predecessor();
  multiply_passes<kUp, Weights>(
      p, route, shared, reduce_buffer, [&](const PassWalk& pass, int row, int tile_row, float sum) {
        const int place = pass.place() + row;
        if constexpr (kUp) {
          // Of a gate: its up lies eight lanes on.
          const float up = __shfl_down_sync(kFullWarp, sum, kHalfTile);
          if (row >= pass.num_rows() || tile_row >= kHalfTile) return;
          const float gate = activate(p.activation, round_to_bf16(sum));
          p.y[std::int64_t{place} * (p.out / 2) + blockIdx.x * kHalfTile + tile_row] =
              __float2bfloat16_rn(gate * (round_to_bf16(up) + p.up_offset));
        } else {
          if (row >= pass.num_rows()) return;
          const int pair = route.pair_at[place];
          float& to = out[pair / p.per_token * kTileRows + tile_row];
          to = fmaf(route.weight[pair], round_to_bf16(sum), to);
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
  return params.scales == nullptr
             ? launch(name, stream, shape, few_row_experts_kernel<kUp, NativeExperts>, params)
             : launch(name, stream, shape, few_row_experts_kernel<kUp, Fp8Experts>, params);
}

// Weights and what x and y are as wide as.
void set_weights(FewExperts& p, const LinearWeights& weights) {
  p.weights = static_cast<const char*>(weights.weight);
  p.scales = weights.fp8_scales;
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
  set_weights(p, ff.up);
  p.x = static_cast<const Bf16*>(params.x);
  p.y = inner;
  p.activation = ff.activation;
  p.up_offset = ff.up_offset;
  GAPLESS_RETURN_IF_ERROR(
      launch_few<true>("experts up, few rows", stream, ff.inner() / kHalfTile, p));
  set_weights(p, ff.down);
  p.x = inner;
  p.y = static_cast<Bf16*>(params.y);
  p.residual = static_cast<const Bf16*>(params.residual);
  return launch_few<false>("experts down, few rows", stream,
                           (ff.down.out + kTileRows - 1) / kTileRows, p);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
