// The bookkeeping of a step, on rows: install, plan, advance, stamp. Tiny kernels of one thread per
// item.
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/short_list.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "step/automaton_walk.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kRowThreads = 64;

__device__ void copy_row_state(RowState* to, const RowState* from) {
  constexpr int kWords = sizeof(RowState) / 8;
  for (int i = threadIdx.x; i < kWords; i += blockDim.x) {
    reinterpret_cast<std::uint64_t*>(to)[i] = reinterpret_cast<const std::uint64_t*>(from)[i];
  }
}

// The block's install gets zeros, then its notes.
__device__ void fill_memory(const BeginStepParams& p, int install) {
  const TokenMemory& memory = p.token_memory;
  const std::int64_t begin = p.install_rows[install] * memory.stride;
  std::uint16_t* uses = memory.uses + begin;
  float* biases = memory.biases + begin;
  // Rows begin and end at whole words of 8 uses; what lies behind the vocabulary is nobody's.
  for (int word = threadIdx.x; word < memory.stride / 8; word += blockDim.x) {
    reinterpret_cast<uint4*>(uses)[word] = uint4{};
    reinterpret_cast<float4*>(biases)[2 * word] = float4{};
    reinterpret_cast<float4*>(biases)[2 * word + 1] = float4{};
  }
  __syncthreads();
  const int end = p.first_notes[install + 1];
  for (int n = p.first_notes[install] + threadIdx.x; n < end; n += blockDim.x) {
    const TokenNote note = p.notes[n];
    uses[note.token] = note.in_prompt != 0 ? kTokenInPrompt : 0;
    biases[note.token] = note.bias;
  }
}

// Blocks [0, max_installs) install one row each, the others set kRowThreads page-table entries each.
__global__ void begin_step_kernel(BeginStepParams p) {
  let_successor_start();
  wait_for_predecessor();
  const int block = blockIdx.x;
  if (block < p.max_installs) {
    if (block < *p.num_installs) {
      copy_row_state(&p.row_states[p.install_rows[block]], &p.installs[block]);
      if ((p.installs[block].flags & kRowAdjustsLogits) != 0) fill_memory(p, block);
    }
    return;
  }
  const int i = (block - p.max_installs) * kRowThreads + threadIdx.x;
  if (i >= min(*p.num_deltas, p.max_deltas)) return;
  const PageTableDelta delta = p.deltas[i];
  p.page_table[std::int64_t{delta.row} * p.page_table_stride + delta.index] = delta.page;
}

// By one block, each thread some of the rows.
__device__ void plan_logits(const PlanDecodeParams& p) {
  constexpr int kPlaces = StepLogits::kMaxTokens;
  __shared__ std::int32_t all, tokens[kPlaces];
  static_assert(kPlaces <= kRowThreads);
  if (threadIdx.x == 0) all = 0;
  if (threadIdx.x < kPlaces) tokens[threadIdx.x] = -1;
  __syncthreads();
  const auto add = [&](std::int32_t token) {
    for (std::int32_t& place : tokens) {
      const std::int32_t before = atomicCAS(&place, -1, token);
      if (before == -1 || before == token) return;
    }
    all = 1;
  };
  for (int i = threadIdx.x; i < p.num_rows; i += kRowThreads) {
    const std::int32_t row = p.rows[i];
    if (row < 0) continue;
    const RowState& state = p.row_states[row];
    const ShortList list = load_short_list(p.automata, state, p.vocab);
    if (state.done != 0) continue;
    if (!list.exists) all = 1;
    for (int t = 0; list.reads_logits() && t < list.num_tokens; ++t) add(list.tokens[t]);
  }
  __syncthreads();
  if (threadIdx.x == 0) p.needed_logits->all = all;
  if (threadIdx.x < kPlaces) p.needed_logits->tokens[threadIdx.x] = tokens[threadIdx.x];
}

// By one block.
__device__ void plan_any_lives(const PlanDecodeParams& p) {
  bool lives = false;
  for (int i = threadIdx.x; i < p.num_rows; i += kRowThreads) {
    const std::int32_t row = p.rows[i];
    lives = lives || (row >= 0 && p.row_states[row].done == 0);
  }
  const bool any = __syncthreads_or(lives) != 0;
  if (threadIdx.x == 0) *p.any_lives = any ? 1 : 0;
}

// By one warp: row i's set.
__device__ SharedPrefix find_shared_prefix(const PlanDecodeParams& p, int i) {
  static_assert(kSharingSlice == 2 * kWarp, "a lane has two rows of a slice");
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int slice = sharing_slice_begin(i);
  const auto pages_of = [&p](int row) {
    return p.page_table + std::int64_t{p.rows[row]} * p.page_table_stride;
  };
  const auto full_pages_of = [&p](int row) {
    return p.row_states[p.rows[row]].position / kPageTokens;
  };
  const auto ballot = [](const bool(&is)[2]) {
    return __ballot_sync(kFullWarp, is[0]) |
           static_cast<std::uint64_t>(__ballot_sync(kFullWarp, is[1])) << kWarp;
  };
  // Of a row that lives; else -1.
  std::int32_t first_pages[2];
  for (int k = 0; k < 2; ++k) {
    const int row = slice + lane + k * kWarp;
    const std::int32_t index = row < p.num_rows ? p.rows[row] : -1;
    // Both are asked for at once.
    const bool is_done = index < 0 || p.row_states[index].done != 0;
    const std::int32_t page = index < 0 ? -1 : *pages_of(row);
    first_pages[k] = is_done ? -1 : page;
  }
  const std::int32_t own = __shfl_sync(kFullWarp, first_pages[(i - slice) / kWarp], i % kWarp);
  const bool has_same[2] = {first_pages[0] == own, first_pages[1] == own};
  const SharedPrefix all{.rows = ballot(has_same)};
  const int set = all.rank_of(i) / kMaxSharingRows;
  const bool is_member[2] = {has_same[0] && all.rank_of(lane) / kMaxSharingRows == set,
                             has_same[1] && all.rank_of(lane + kWarp) / kMaxSharingRows == set};
  SharedPrefix found{.rows = ballot(is_member)};
  if (own < 0 || found.size() < 2) return {};
  const int first = slice + found.first();
  const std::int32_t *own_pages = pages_of(i), *pages = pages_of(first);
  const int most = min(full_pages_of(i), full_pages_of(first));
  found.num_pages = most;
  for (int begin = 0; begin < most; begin += kWarp) {
    const int page = begin + lane;
    const unsigned differs =
        __ballot_sync(kFullWarp, page < most && own_pages[page] != pages[page]);
    if (differs == 0) continue;
    found.num_pages = begin + __ffs(static_cast<int>(differs)) - 1;
    break;
  }
  return found;
}

// Whether a block plans what the step's rows have together.
__host__ __device__ bool has_common_plan(const PlanDecodeParams& p) {
  return p.needed_logits != nullptr || p.any_lives != nullptr;
}

// The first blocks have a thread for each row; those behind them, if anybody asks for shared prefixes, a warp. The last one is that of the
// common plan, if there is one.
__global__ void plan_decode_kernel(PlanDecodeParams p) {
  let_successor_start();
  wait_for_predecessor();
  if (has_common_plan(p) && blockIdx.x == gridDim.x - 1) {
    if (p.needed_logits != nullptr) plan_logits(p);
    if (p.any_lives != nullptr) plan_any_lives(p);
    return;
  }
  const int i = blockIdx.x * kRowThreads + threadIdx.x;
  const int blocks_of_threads = (p.num_rows + kRowThreads - 1) / kRowThreads;
  if (static_cast<int>(blockIdx.x) >= blocks_of_threads) {
    const int row = (i - blocks_of_threads * kRowThreads) / kWarp;
    if (row >= p.num_rows) return;
    const SharedPrefix found = find_shared_prefix(p, row);
    if (threadIdx.x % kWarp == 0) p.shared_prefixes[row] = found;
    return;
  }
  if (i >= p.num_rows) return;
  const std::int32_t row = p.rows[i];
  const bool padding = row < 0;
  if (padding || p.row_states[row].done != 0) {
    p.input_index[i] = -1;
    p.positions[i] = 0;
    p.cache_slots[i] = i % kPageTokens;  // page 0 is trash
    p.sequences[i] = {padding ? 0 : row, i, 0, 0, 0};
    return;
  }
  const std::int32_t position = p.row_states[row].position;
  const std::int32_t page =
      p.page_table[std::int64_t{row} * p.page_table_stride + position / kPageTokens];
  p.input_index[i] = row;
  p.positions[i] = position;
  p.cache_slots[i] = page * kPageTokens + position % kPageTokens;
  p.sequences[i] = {row, i, 1, position, 0};
}

__device__ TokenInput next_input(const AdvanceRowsParams& p, const RowState& row, int i) {
  const std::int32_t token = p.tokens[i];
  if ((row.flags & kRowDecodesRegions) != 0) {
    const float* values = p.values + std::int64_t{i} * 2;
    if (token == p.coord_id) return {InputKind::kCoord, token, values[0], 0};
    if (token == p.size_id) return {InputKind::kSize, token, values[0], values[1]};
  }
  return {InputKind::kText, token, 0, 0};
}

__device__ StepOutput advance(const AdvanceRowsParams& p, RowState& row, int i) {
  const std::int32_t token = p.tokens[i];
  row.input = next_input(p, row, i);
  row.position += p.tokens_consumed != nullptr ? p.tokens_consumed[i] : 1;
  row.num_generated += 1;
  walk_automaton(p.automata, p.token_classes, token, row);
  StepOutcome outcome =
      row.num_generated >= row.max_generated ? StepOutcome::kLength : StepOutcome::kContinues;
  for (int s = 0; s < row.num_stop_ids; ++s) {
    if (row.stop_ids[s] == token) outcome = StepOutcome::kStopped;
  }
  row.done = outcome != StepOutcome::kContinues;
  StepOutput output{token, outcome, row.input.x, row.input.y, p.logprobs[i], row.position - 1, {}};
  if ((row.flags & kRowWantsConfidence) != 0) {
    output.confidence.token = p.confidences[i].token;
    if (row.input.kind != InputKind::kText) {
      output.confidence.x = p.confidences[i].x;
      output.confidence.y = p.confidences[i].y;
    }
  }
  return output;
}

__device__ void count_use(const TokenMemory& memory, std::int32_t row, std::int32_t token) {
  std::uint16_t& uses = memory.uses[row * memory.stride + token];
  if ((uses & kMaxTokenUses) < kMaxTokenUses) ++uses;
}

__global__ void advance_rows_kernel(AdvanceRowsParams p) {
  let_successor_start();
  wait_for_predecessor();
  const int i = blockIdx.x * kRowThreads + threadIdx.x;
  if (i >= p.num_rows) return;
  const std::int32_t row = p.rows[i];
  StepOutput output{-1, StepOutcome::kAlreadyDone, 0, 0, 0, 0, {}};
  if (row >= 0) {
    RowState& state = p.row_states[row];
    if (state.done != 0) {
      output.position = state.position;
    } else {
      output = advance(p, state, i);
      if ((state.flags & kRowAdjustsLogits) != 0) count_use(p.token_memory, row, output.token);
    }
  }
  p.outputs[i] = output;
}

__global__ void stamp_time_kernel(std::uint64_t* stamp) {
  let_successor_start();
  wait_for_predecessor();
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  *stamp = now;
}

LaunchShape one_thread_each(int items) {
  return {.grid = dim3(blocks_for(items, kRowThreads)), .block = dim3(kRowThreads)};
}

}  // namespace

Status begin_step(Stream& stream, const BeginStepParams& params) {
  const unsigned blocks =
      static_cast<unsigned>(params.max_installs) + blocks_for(params.max_deltas, kRowThreads);
  return launch("begin_step", stream, {.grid = dim3(blocks), .block = dim3(kRowThreads)},
                begin_step_kernel, params);
}

Status plan_decode(Stream& stream, const PlanDecodeParams& params) {
  LaunchShape shape = one_thread_each(params.num_rows);
  if (params.shared_prefixes != nullptr) {
    shape.grid.x += blocks_for(params.num_rows * kWarp, kRowThreads);
  }
  if (has_common_plan(params)) ++shape.grid.x;
  return launch("plan_decode", stream, shape, plan_decode_kernel, params);
}

Status advance_rows(Stream& stream, const AdvanceRowsParams& params) {
  return launch("advance_rows", stream, one_thread_each(params.num_rows), advance_rows_kernel,
                params);
}

bool has_step_code() {
  cudaFuncAttributes attributes;
  const bool has = cudaFuncGetAttributes(&attributes, stamp_time_kernel) == cudaSuccess;
  (void)cudaGetLastError();
  return has;
}

Status stamp_time(Stream& stream, std::uint64_t* stamp) {
  return launch("stamp_time", stream, {.grid = dim3(1), .block = dim3(1)}, stamp_time_kernel,
                stamp);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
