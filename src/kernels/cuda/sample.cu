// Picks each row's token; SampleParams in kernels.h says how. Several blocks per row summarise a part
// of its logits each; then one block per row merges them and, unless the row is greedy, draws.
//
// A row with biases, penalties or held-back stop ids is picked by other logits than the model's. The
// blocks that summarise it leave those in scratch memory, where the draw finds them. Other rows take
// neither the time nor the path. Of a row with a short list only its tokens are looked at: nobody may have computed the other
// logits. The block that picks the row's token does that alone, unless other logits than the model's are to be made.
#include <cmath>

#include "kernels/adjusted_logit.h"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/short_list.cuh"
#include "kernels/cuda/device/token_order.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/row_mask.h"
#include "kernels/sampling_uniform.h"
#include "step/automaton_walk.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// Loads in flight per thread. Where each logit brings others along, fewer: no row may pay in registers
// for what another one asks.
constexpr int kUnroll = 8;
constexpr int kAdjustedUnroll = 1;

// Parts of a row, and threads of the block that summarises one.
constexpr int kParts = 16;
constexpr int kPartThreads = 256;

// Calls use(token, logit) for the tokens of [begin, end), spread over a block of kThreads.
template <int kThreads, int kInFlight, typename Use>
__device__ __forceinline__ void scan_logits(const float* logits, int begin, int end,
                                            const Use& use) {
  for (int base = begin + threadIdx.x; base < end; base += kThreads * kInFlight) {
    float values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int token = base + i * kThreads;
      values[i] = token < end ? logits[token] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int token = base + i * kThreads;
      if (token < end) use(token, values[i]);
    }
  }
}

// Which tokens a row may take, in registers.
class Allowed {
 public:
  __device__ Allowed(const SampleParams& p, const RowState& row, std::int64_t i)
      : listed_only_(false), classes_(0), token_classes_(p.token_classes), mask_(nullptr) {
    if (row.automaton != kNoAutomaton) {
      const ListedTokens listed = listed_tokens(p.automata[row.automaton], row, p.token_classes);
      listed_only_ = listed.only;
      classes_ = listed.classes;
#pragma unroll
      for (int i = 0; i < kMaxIds; ++i) ids_[i] = i < listed.num_tokens ? listed.tokens[i] : -1;
      return;
    }
    mask_ = mask_of(p, row, i);
#pragma unroll
    for (int i = 0; i < kMaxIds; ++i) ids_[i] = i < row.num_denied_ids ? row.denied_ids[i] : -1;
  }

  // Where the token's bit is, to be brought before it is asked for.
  __device__ std::uint32_t mask_word(int token) const {
    return mask_ != nullptr ? mask_[token / 32] : ~0u;
  }
  __device__ bool operator()(int token) const {
    return (*this)(token, mask_word(token));
  }
  __device__ bool operator()(int token, std::uint32_t word) const {
    bool listed = false;
#pragma unroll
    for (int i = 0; i < kMaxIds; ++i) listed |= ids_[i] == token;
    if (listed_only_) {
      return listed || (classes_ != 0 && has_class(classes_, token_classes_[token]));
    }
    return !listed && ((word >> (token % 32)) & 1u) != 0;
  }

 private:
  static constexpr int kMaxIds = kMaxDeniedIds;
  static_assert(kMaxIds == kMaxAutomatonEdges);
  std::int32_t ids_[kMaxIds];  // what the automaton's state lists, or the denied ids
  bool listed_only_;
  std::uint32_t classes_;  // of the automaton's state
  const std::uint8_t* token_classes_;
  const std::uint32_t* mask_;  // nullptr: none
};

// scan_logits with use(token, logit, mask_word): the words of masks are under way together with the logits.
template <int kThreads, int kInFlight, typename Use>
__device__ __forceinline__ void scan_with_masks(const float* logits, int begin, int end,
                                                const Allowed& allowed, const Use& use) {
  for (int base = begin + threadIdx.x; base < end; base += kThreads * kInFlight) {
    float values[kInFlight];
    std::uint32_t words[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int token = base + i * kThreads;
      values[i] = token < end ? logits[token] : 0.0f;
      words[i] = token < end ? allowed.mask_word(token) : 0;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int token = base + i * kThreads;
      if (token < end) use(token, values[i], words[i]);
    }
  }
}

struct Best {
  float logit;
  int token;
};

__device__ Best better(Best a, Best b) {
  return b.logit > a.logit || (b.logit == a.logit && b.token < a.token) ? b : a;
}

// sum of exp(logit) = sum * exp(largest).
struct ExpSum {
  float largest;
  float sum;
};

__device__ ExpSum merge(ExpSum a, ExpSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return a;
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

struct Summary {
  Best best;       // candidate; token INT_MAX: there is none
  ExpSum all;      // of the whole vocabulary
  int all_finite;  // every candidate's logit was finite
};

__device__ Summary merge(const Summary& a, const Summary& b) {
  return {better(a.best, b.best), merge(a.all, b.all), a.all_finite & b.all_finite};
}

// The merged summaries of the first kLanes lanes, in a fixed order; in lane 0.
template <int kLanes>
__device__ Summary merge_lanes(Summary s) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    s = merge(s, {{__shfl_down_sync(kFullWarp, s.best.logit, offset),
                   __shfl_down_sync(kFullWarp, s.best.token, offset)},
                  {__shfl_down_sync(kFullWarp, s.all.largest, offset),
                   __shfl_down_sync(kFullWarp, s.all.sum, offset)},
                  __shfl_down_sync(kFullWarp, s.all_finite, offset)});
  }
  return s;
}

// Of no tokens.
__device__ Summary empty_summary() {
  return {{-INFINITY, 0x7fffffff}, {-INFINITY, 0}, 1};
}

// A row without adjustments.
struct AsTheModelSays {
  static constexpr int kInFlight = kUnroll;
  __device__ bool operator()(int, float&) const { return true; }
};

// Turns a candidate's logit into the one that it is picked by, and remembers that. False: the token
// is held back.
struct Adjusted {
  static constexpr int kInFlight = kAdjustedUnroll;
  const RowState& row;
  const std::uint16_t* uses;  // nullptr: the row has no token memory
  const float* biases;
  float* adjusted;  // out [vocab]

  __device__ bool operator()(int token, float& logit) const {
    const bool held_back = is_held_back(row, token);
    if (uses != nullptr) logit = adjusted_logit(logit, row.sampling, uses[token], biases[token]);
    // The draw gives this no weight.
    adjusted[token] = held_back ? -INFINITY : logit;
    return !held_back;
  }
};

__device__ void add_to(ExpSum& all, float logit) {
  if (!isfinite(logit)) return;
  if (logit > all.largest) {
    all.sum *= expf(all.largest - logit);
    all.largest = logit;
  }
  all.sum += __expf(logit - all.largest);
}

// One thread's share of the tokens of [begin, end), and where the kernel waits: behind grammar_masks the sum over the whole
// vocabulary, which no mask changes, is made while the masks are looked for.
template <typename Adjust>
__device__ Summary summarize(const SampleParams& p, const float* logits, int begin, int end,
                             const Allowed& allowed, const Adjust& adjust) {
  Summary s = empty_summary();
  const auto pick = [&](int token, float logit, bool is_allowed) {
    const bool finite = isfinite(logit);
    if (!is_allowed || !adjust(token, logit)) return;
    if (finite) {
      s.best = better(s.best, {logit, token});
    } else {
      s.all_finite = 0;
    }
  };
  const auto scan = [&](const auto& use) {
    scan_logits<kPartThreads, Adjust::kInFlight>(logits, begin, end, use);
  };
  if (p.behind_grammar_masks) {
    scan([&](int, float logit) { add_to(s.all, logit); });
    wait_for_predecessor();
    scan_with_masks<kPartThreads, Adjust::kInFlight>(
        logits, begin, end, allowed, [&](int token, float logit, std::uint32_t mask_word) {
          pick(token, logit, allowed(token, mask_word));
        });
  } else {
    scan([&](int token, float logit) {
      add_to(s.all, logit);
      pick(token, logit, allowed(token));
    });
  }
  return s;
}

// Of the i-th row of the batch, behind all summaries; see Adjusted.
__device__ float* adjusted_logits(const SampleParams& p, std::int64_t i) {
  auto* first = reinterpret_cast<float*>(static_cast<Summary*>(p.scratch) + p.num_rows * kParts);
  return first + i * p.vocab;
}

__device__ Adjusted make_adjusted(const SampleParams& p, const RowState& row, int row_index,
                                  std::int64_t i) {
  Adjusted adjust{row, nullptr, nullptr, adjusted_logits(p, i)};
  if ((row.flags & kRowAdjustsLogits) != 0) {
    adjust.uses = p.token_memory.uses + row_index * p.token_memory.stride;
    adjust.biases = p.token_memory.biases + row_index * p.token_memory.stride;
  }
  return adjust;
}

// Whether there is nothing to sample.
__device__ bool is_idle(const SampleParams& p, int row_index) {
  return row_index < 0 || p.row_states[row_index].done != 0;
}

// Whether there is no choice.
__device__ bool is_certain(const ShortList& list) {
  return list.exists && list.num_tokens == 1;
}

// Whether the block that samples a row looks at its few candidates itself: nothing is summarised for it.
__device__ bool is_summed_up_at_once(const ShortList& list, const RowState& row) {
  return list.exists && !is_adjusted(row);
}

// Made by one warp, for all of the block.
__device__ const ShortList& share_short_list(const SampleParams& p, const RowState& row) {
  __shared__ alignas(8) char raw[sizeof(ShortList)];
  auto& list = *reinterpret_cast<ShortList*>(raw);
  if (threadIdx.x < kWarp) {
    const ShortList own = load_short_list(p.automata, row, p.vocab);
    if (threadIdx.x == 0) list = own;
  }
  __syncthreads();
  return list;
}

// Of the candidates alone: who has a short list tells no logprob. In every thread.
__device__ Summary summarize_list(const ShortList& list, const float* logits) {
  float values[kMaxAutomatonEdges];
#pragma unroll
  for (int i = 0; i < kMaxAutomatonEdges; ++i) {
    values[i] = i < list.num_tokens ? logits[list.tokens[i]] : 0.0f;
  }
  Summary s = empty_summary();
#pragma unroll
  for (int i = 0; i < kMaxAutomatonEdges; ++i) {
    if (i >= list.num_tokens) continue;
    if (isfinite(values[i])) {
      s.best = better(s.best, {values[i], list.tokens[i]});
    } else {
      s.all_finite = 0;
    }
  }
  return s;
}

// Blocks: x = part, y = row.
__global__ void __launch_bounds__(kPartThreads) summarize_kernel(SampleParams p) {
  constexpr int kWarps = kPartThreads / kWarp;
  __shared__ Summary warps[kWarps];
  if (!p.behind_grammar_masks) wait_for_predecessor();
  // Behind it, or behind grammar_masks', so that the rows' states are there when the next kernel starts.
  let_successor_start();
  const std::int64_t i = blockIdx.y;
  const int row_index = p.rows[i];
  if (is_idle(p, row_index)) return wait_for_predecessor();
  const RowState& row = p.row_states[row_index];
  const ShortList& list = share_short_list(p, row);
  if (is_certain(list) || is_summed_up_at_once(list, row)) return wait_for_predecessor();
  const Allowed allowed(p, row, i);
  const float* logits = p.logits + i * p.logits_stride;
  const int part = blockIdx.x;
  const auto [begin, end] =
      needed_columns(list, {part * p.vocab / kParts, (part + 1) * p.vocab / kParts});
  const Summary share =
      is_adjusted(row)
          ? summarize(p, logits, begin, end, allowed, make_adjusted(p, row, row_index, i))
          : summarize(p, logits, begin, end, allowed, AsTheModelSays());
  const Summary own = merge_lanes<kWarp>(share);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (lane == 0) warps[warp] = own;
  __syncthreads();
  if (warp != 0) return;
  const Summary whole = merge_lanes<kWarps>(lane < kWarps ? warps[lane] : empty_summary());
  if (lane == 0) static_cast<Summary*>(p.scratch)[i * kParts + part] = whole;
}

// A row's parts become one summary, in every thread.
__device__ Summary merge_parts(const Summary* parts) {
  __shared__ Summary whole;
  if (threadIdx.x < kWarp) {
    const Summary s =
        merge_lanes<kParts>(threadIdx.x < kParts ? parts[threadIdx.x] : empty_summary());
    if (threadIdx.x == 0) whole = s;
  }
  __syncthreads();
  return whole;
}

// The filters keep a prefix of the order; the draw is at a share of the prefix's weight.
template <int kIdBits>
__device__ int draw(const float* logits, int vocab, const SamplingSettings& settings,
                    int num_generated, const Allowed& allowed, float largest,
                    TokenOrderShared<kIdBits>& shared) {
  const auto scan = [&](auto use) {
    scan_logits<kSampleThreads, kUnroll>(logits, 0, vocab, [&](int token, float logit) {
      if (allowed(token)) use(token, logit);
    });
  };
  TokenOrder<kIdBits, decltype(scan)> order(scan, largest, settings.temperature, shared);
  const std::uint64_t total = order.total_weight();
  std::uint64_t kept = total;
  if (settings.top_k > 0) {
    const std::uint64_t last = static_cast<std::uint64_t>(settings.top_k) - 1;
    kept = min(kept, order.find({.by_count = true, .amount = last}).weight);
  }
  if (settings.top_p < 1) {
    const double before =
        fmax(0.0, static_cast<double>(settings.top_p)) * static_cast<double>(total);
    kept = min(
        kept, order.find({.by_count = false, .amount = static_cast<std::uint64_t>(before)}).weight);
  }
  if (settings.min_p > 0) {
    __shared__ unsigned long long likely;
    if (threadIdx.x == 0) likely = 0;
    __syncthreads();
    std::uint64_t mine = 0;
    scan([&](int, float logit) {
      if (order.relative_probability(logit) >= settings.min_p) mine += order.weight(logit);
    });
    atomicAdd(&likely, static_cast<unsigned long long>(mine));
    __syncthreads();
    // At least the first token stays.
    kept = min(kept, max(std::uint64_t{likely}, std::uint64_t{kFullWeight}));
  }
  const double share = sampling_uniform(settings.seed, num_generated);
  const auto amount = static_cast<std::uint64_t>(share * static_cast<double>(kept));
  return order.find({.by_count = false, .amount = min(amount, kept - 1)}).token;
}

__device__ float logprob_of(const float* logits, int token, const ExpSum& all) {
  const float logit = logits[token];
  return isfinite(logit) ? logit - all.largest - logf(all.sum) : kImpossibleLogprob;
}

// Of a token among those that the row might have taken, together with those that count as the same,
// in thread 0. Added up in a fixed order.
__device__ float confidence_of(const float* logits, ColumnRange columns, const RowState& row,
                               const Allowed& allowed, const AutomatonState* state, int chosen) {
  constexpr int kWarps = kSampleThreads / kWarp;
  __shared__ float warps[kWarps], own_warps[kWarps];
  const auto is_candidate = [&](int token, float logit) {
    return isfinite(logit) && allowed(token) && !is_held_back(row, token);
  };
  if (!is_candidate(chosen, logits[chosen])) return 0;
  const int counts_as = counted_as(state, chosen);
  float sum = 0, own = 0;
  // A token is always the same thread's, whatever the columns are.
  const int first = columns.begin / kSampleThreads * kSampleThreads;
  for (int token = first + threadIdx.x; token < columns.end; token += kSampleThreads) {
    const float logit = logits[token];
    if (!is_candidate(token, logit)) continue;
    const float share = expf(logit - logits[chosen]);
    sum += share;
    if (counted_as(state, token) == counts_as) own += share;
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, offset);
    own += __shfl_xor_sync(kFullWarp, own, offset);
  }
  if (threadIdx.x % kWarp == 0) {
    warps[threadIdx.x / kWarp] = sum;
    own_warps[threadIdx.x / kWarp] = own;
  }
  __syncthreads();
  float whole = 0, own_whole = 0;
  for (int w = 0; w < kWarps; ++w) {
    whole += warps[w];
    own_whole += own_warps[w];
  }
  return own_whole / whole;
}

// Nothing is drawn for a greedy row, where a logit is not finite, and where nothing is allowed.
__device__ bool takes_best(const SampleParams& p, const RowState& row, const Summary& summary) {
  return summary.best.token >= p.vocab || !(row.sampling.temperature > 0) ||
         summary.all_finite == 0;
}

__device__ int best_token(const SampleParams& p, const RowState& row, const Summary& summary) {
  if (summary.best.token < p.vocab) return summary.best.token;
  return row.num_stop_ids > 0 ? row.stop_ids[0] : 0;  // nothing is allowed
}

template <int kIdBits>
__global__ void __launch_bounds__(kSampleThreads) sample_kernel(SampleParams p) {
  extern __shared__ __align__(16) char raw_shared[];
  let_successor_start();
  const std::int64_t i = blockIdx.x;
  const int row_index = p.rows[i];
  if (is_idle(p, row_index)) {
    wait_for_predecessor();
    if (threadIdx.x == 0) {
      p.tokens[i] = -1;
      p.logprobs[i] = 0;
    }
    return;
  }
  const RowState& row = p.row_states[row_index];
  const bool wants_confidence = (row.flags & kRowWantsConfidence) != 0;
  const ShortList& list = share_short_list(p, row);
  if (is_certain(list)) {
    wait_for_predecessor();
    if (threadIdx.x == 0) {
      p.tokens[i] = list.tokens[0];
      p.logprobs[i] = 0;
      if (wants_confidence) p.confidences[i].token = 1;
    }
    return;
  }
  const float* logits = p.logits + i * p.logits_stride;
  const bool at_once = is_summed_up_at_once(list, row);
  Summary summary = at_once ? summarize_list(list, logits) : empty_summary();
  if (at_once && !wants_confidence && takes_best(p, row, summary)) {
    if (threadIdx.x != 0) return;
    const int token = best_token(p, row, summary);
    wait_for_predecessor();
    p.tokens[i] = counted_as(automaton_state(p.automata, row), token);
    p.logprobs[i] = 0;
    return;
  }
  const Allowed allowed(p, row, i);
  wait_for_predecessor();
  if (!at_once) summary = merge_parts(static_cast<const Summary*>(p.scratch) + i * kParts);

  int token;
  if (takes_best(p, row, summary)) {
    token = best_token(p, row, summary);
  } else {
    const float* picked_by = is_adjusted(row) ? adjusted_logits(p, i) : logits;
    token = draw<kIdBits>(picked_by, p.vocab, row.sampling, row.num_generated, allowed,
                          summary.best.logit,
                          *reinterpret_cast<TokenOrderShared<kIdBits>*>(raw_shared));
  }
  const AutomatonState* const state = automaton_state(p.automata, row);
  const ColumnRange columns = needed_columns(list, {0, p.vocab});
  const float confidence =
      wants_confidence ? confidence_of(logits, columns, row, allowed, state, token) : 0.0f;
  if (threadIdx.x == 0) {
    p.tokens[i] = counted_as(state, token);
    const bool skips_logprob = (row.flags & kRowSkipsLogprob) != 0;
    p.logprobs[i] = skips_logprob ? 0.0f : logprob_of(logits, token, summary.all);
    if (wants_confidence) p.confidences[i].token = confidence;
  }
}

template <int kIdBits>
Status launch_sample(Stream& stream, const SampleParams& params) {
  return launch("sample", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)),
                 .block = dim3(kSampleThreads),
                 .shared_bytes = sizeof(TokenOrderShared<kIdBits>)},
                sample_kernel<kIdBits>, params);
}

}  // namespace

Status sample(Stream& stream, const SampleParams& params) {
  if (params.vocab <= 0 || params.vocab > kMaxSampleVocab) {
    return Status(StatusCode::kInvalidArgument,
                  "sample: the vocabulary must have 1 to 262144 tokens");
  }
  GAPLESS_RETURN_IF_ERROR(launch(
      "summarize", stream,
      {.grid = dim3(kParts, static_cast<unsigned>(params.num_rows)), .block = dim3(kPartThreads)},
      summarize_kernel, params));
  return params.vocab <= 1 << kFewIdBits ? launch_sample<kFewIdBits>(stream, params)
                                         : launch_sample<kManyIdBits>(stream, params);
}

std::size_t sample_scratch_bytes(int max_rows, int vocab) {
  return static_cast<std::size_t>(max_rows) *
         (kParts * sizeof(Summary) + static_cast<std::size_t>(vocab) * sizeof(float));
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
