// Picks each row's token; SampleParams in kernels.h says how. Several blocks per row summarise a part
// of its logits each; then one block per row merges them and, unless the row is greedy, draws.
//
// A row with biases, penalties or held-back stop ids is picked by other logits than the model's. The
// blocks that summarise it leave those in scratch memory, where the draw finds them. Other rows take
// neither the time nor the path. Of a row with a short list only its tokens are looked at: nobody may have computed the other
// logits.
//
// Behind grammar_masks a row under a grammar reads its logits once, while its mask is being looked for: it adds them up and keeps the
// largest of each 32 tokens. With the mask it then reads only the logits that these leave open: where the largest is not
// allowed, and not smaller than one that is.
#include <cmath>

#include "kernels/adjusted_logit.h"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/token_order.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/needed_logits.h"
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

// The same with use(first, logits) for a thread's logits of so many tokens: first, first + kThreads and so on. Behind `end` they are
// -INFINITY. Threads of a warp come together.
template <int kThreads, int kInFlight, typename Use>
__device__ __forceinline__ void scan_batches(const float* logits, int begin, int end,
                                             const Use& use) {
  const int lane = threadIdx.x % kWarp;
  for (int base = begin + threadIdx.x; base - lane < end; base += kThreads * kInFlight) {
    float values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int token = base + i * kThreads;
      values[i] = token < end ? logits[token] : -INFINITY;
    }
    use(base, values);
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

// Turns a candidate's logit into the one that it is picked by, and remembers that. False: the token
// is held back.
struct Adjusted {
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

// Logits that are not finite do not count.
template <int kNum>
__device__ void add_to(ExpSum& all, const float (&logits)[kNum]) {
  float counted[kNum];
  float largest = all.largest;
#pragma unroll
  for (int i = 0; i < kNum; ++i) {
    counted[i] = isfinite(logits[i]) ? logits[i] : -INFINITY;
    largest = fmaxf(largest, counted[i]);
  }
  if (largest == -INFINITY) return;
  if (largest > all.largest) {
    all.sum *= expf(all.largest - largest);
    all.largest = largest;
  }
#pragma unroll
  for (int i = 0; i < kNum; ++i) all.sum += __expf(counted[i] - largest);
}

// A candidate's logit, later in the order of tokens than all that the thread has seen.
__device__ void pick(Summary& s, int token, float logit) {
  if (!isfinite(logit)) {
    s.all_finite = 0;
  } else if (logit > s.best.logit) {
    s.best = {logit, token};
  }
}

// Candidates by other logits than the model's.
__device__ void pick_adjusted(Summary& s, const float* logits, int begin, int end,
                              const Allowed& allowed, const Adjusted& adjust) {
  scan_with_masks<kPartThreads, kAdjustedUnroll>(
      logits, begin, end, allowed, [&](int token, float logit, std::uint32_t mask_word) {
        const bool finite = isfinite(logit);
        if (!allowed(token, mask_word) || !adjust(token, logit)) return;
        if (finite) {
          s.best = better(s.best, {logit, token});
        } else {
          s.all_finite = 0;
        }
      });
}

// Candidates of a batch of scan_batches. Few logits are larger than all before, and only of these it matters whether they are
// allowed.
template <int kNum>
__device__ void pick_of_batch(Summary& s, int first, const float (&logits)[kNum], int end,
                              const Allowed& allowed) {
  bool may_matter = false;
#pragma unroll
  for (int i = 0; i < kNum; ++i) {
    may_matter |= !isfinite(logits[i]) || logits[i] > s.best.logit;
  }
  if (!may_matter) return;
#pragma unroll
  for (int i = 0; i < kNum; ++i) {
    const int token = first + i * kPartThreads;
    const bool matters = !isfinite(logits[i]) || logits[i] > s.best.logit;
    if (token < end && matters && allowed(token)) pick(s, token, logits[i]);
  }
}

// The largest logit of the tokens of one mask word: its bits as an integer that rises with it, and which token's it is, the first
// one's among equals.
struct WordBest {
  std::uint32_t rising;
  int lane;

  static constexpr std::uint32_t kNone = 0;      // no token
  static constexpr std::uint32_t kUnsure = ~0u;  // some logit is not finite
  __device__ static std::uint32_t rising_of(float logit) {
    const std::uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 counts as 0
    return bits ^ ((bits >> 31) != 0 ? ~0u : 1u << 31);
  }
  __device__ float logit() const {
    return __uint_as_float(rising ^ ((rising >> 31) != 0 ? 1u << 31 : ~0u));
  }
};

// Words of the largest part.
constexpr int part_words(int vocab) {
  return ((vocab + kWarp - 1) / kWarp + kParts - 1) / kParts;
}

// The warp's threads, of a batch that begins with `first` of each: one word each time.
template <int kNum>
__device__ void note_words(WordBest* words, int begin, int end, int first,
                           const float (&logits)[kNum]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kNum; ++i) {
    const int token = first + i * kPartThreads;
    if (token - lane >= end) break;
    std::uint32_t rising = isfinite(logits[i]) ? WordBest::rising_of(logits[i]) : WordBest::kUnsure;
    if (token >= end) rising = WordBest::kNone;
    const std::uint32_t most = __reduce_max_sync(kFullWarp, rising);
    const unsigned equal = __ballot_sync(kFullWarp, rising == most);
    if (lane == 0) words[(token - begin) / kWarp] = {most, __ffs(static_cast<int>(equal)) - 1};
  }
}

// Candidates of a part whose words are known, and whose mask has come by now.
__device__ void pick_of_words(Summary& s, const float* logits, int begin, int end,
                              const Allowed& allowed, const WordBest* words) {
  constexpr int kInFlight = 4;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int num_words = (end - begin + kWarp - 1) / kWarp;
  for (int first = warp * kWarp; first < num_words; first += kPartThreads) {
    const int w = first + lane;
    const bool exists = w < num_words;
    const std::uint32_t mask = exists ? allowed.mask_word(begin + w * kWarp) : 0;
    const WordBest best = exists ? words[w] : WordBest{};
    const int token = begin + w * kWarp + best.lane;
    const bool is_sure = mask != 0 && best.rising != WordBest::kUnsure && allowed(token, mask);
    if (is_sure) s.best = better(s.best, {best.logit(), token});
    const float bound = warp_max(s.best.logit);
    const bool is_open =
        mask != 0 && !is_sure && (best.rising == WordBest::kUnsure || best.logit() >= bound);
    for (unsigned open = __ballot_sync(kFullWarp, is_open); open != 0;) {
      float values[kInFlight];
      bool is_candidate[kInFlight];
      int tokens[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int from = open != 0 ? __ffs(static_cast<int>(open)) - 1 : 0;
        const std::uint32_t its_mask = __shfl_sync(kFullWarp, mask, from);
        tokens[i] = begin + (first + from) * kWarp + lane;
        is_candidate[i] = open != 0 && tokens[i] < end && allowed(tokens[i], its_mask);
        values[i] = is_candidate[i] ? logits[tokens[i]] : 0.0f;
        open &= open - 1;
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (!is_candidate[i]) continue;
        if (isfinite(values[i])) {
          s.best = better(s.best, {values[i], tokens[i]});
        } else {
          s.all_finite = 0;
        }
      }
    }
  }
}

// One thread's share of the tokens of [begin, end), of a row that is picked by the model's logits. And where the kernel waits.
__device__ Summary summarize(const SampleParams& p, const float* logits, int begin, int end,
                             const Allowed& allowed, bool mask_is_to_come) {
  Summary s = empty_summary();
  if (mask_is_to_come) {
    extern __shared__ __align__(16) char raw_shared[];
    auto* const words = reinterpret_cast<WordBest*>(raw_shared);
    scan_batches<kPartThreads, kUnroll>(logits, begin, end, [&](int first, const auto& values) {
      add_to(s.all, values);
      note_words(words, begin, end, first, values);
    });
    wait_for_predecessor();
    __syncthreads();
    pick_of_words(s, logits, begin, end, allowed, words);
    return s;
  }
  scan_batches<kPartThreads, kUnroll>(logits, begin, end, [&](int first, const auto& values) {
    add_to(s.all, values);
    pick_of_batch(s, first, values, end, allowed);
  });
  if (p.behind_grammar_masks) wait_for_predecessor();
  return s;
}

// The same of a row with other logits than the model's.
__device__ Summary summarize_adjusted(const SampleParams& p, const float* logits, int begin,
                                      int end, const Allowed& allowed, const Adjusted& adjust) {
  Summary s = empty_summary();
  scan_batches<kPartThreads, kUnroll>(logits, begin, end,
                                      [&](int, const auto& values) { add_to(s.all, values); });
  if (p.behind_grammar_masks) wait_for_predecessor();
  pick_adjusted(s, logits, begin, end, allowed, adjust);
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

// Tokens of whole mask words.
__device__ ColumnRange part_of(int part, int vocab) {
  const int num_words = (vocab + kWarp - 1) / kWarp;
  return {part * num_words / kParts * kWarp, min((part + 1) * num_words / kParts * kWarp, vocab)};
}

// Blocks: x = part, y = row.
__global__ void __launch_bounds__(kPartThreads) summarize_kernel(SampleParams p) {
  constexpr int kWarps = kPartThreads / kWarp;
  __shared__ Summary warps[kWarps];
  let_successor_start();
  if (!p.behind_grammar_masks) wait_for_predecessor();
  const std::int64_t i = blockIdx.y;
  const int row_index = p.rows[i];
  if (is_idle(p, row_index)) return wait_for_predecessor();
  const RowState& row = p.row_states[row_index];
  const ShortList list = short_list(p.automata, row, p.vocab);
  if (is_certain(list)) return wait_for_predecessor();
  const Allowed allowed(p, row, i);
  const float* logits = p.logits + i * p.logits_stride;
  const auto [begin, end] = needed_columns(list, part_of(blockIdx.x, p.vocab));
  const Summary share =
      is_adjusted(row)
          ? summarize_adjusted(p, logits, begin, end, allowed, make_adjusted(p, row, row_index, i))
          : summarize(p, logits, begin, end, allowed,
                      p.behind_grammar_masks && has_grammar_mask(row));
  const Summary own = merge_lanes<kWarp>(share);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (lane == 0) warps[warp] = own;
  __syncthreads();
  if (warp != 0) return;
  const Summary whole = merge_lanes<kWarps>(lane < kWarps ? warps[lane] : empty_summary());
  if (lane == 0) static_cast<Summary*>(p.scratch)[i * kParts + blockIdx.x] = whole;
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

template <int kIdBits>
__global__ void __launch_bounds__(kSampleThreads) sample_kernel(SampleParams p) {
  extern __shared__ __align__(16) char raw_shared[];
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t i = blockIdx.x;
  const int row_index = p.rows[i];
  if (is_idle(p, row_index)) {
    if (threadIdx.x == 0) {
      p.tokens[i] = -1;
      p.logprobs[i] = 0;
    }
    return;
  }
  const RowState& row = p.row_states[row_index];
  const bool wants_confidence = (row.flags & kRowWantsConfidence) != 0;
  const ShortList list = short_list(p.automata, row, p.vocab);
  if (is_certain(list)) {
    if (threadIdx.x == 0) {
      p.tokens[i] = list.tokens[0];
      p.logprobs[i] = 0;
      if (wants_confidence) p.confidences[i].token = 1;
    }
    return;
  }
  const float* logits = p.logits + i * p.logits_stride;
  const Allowed allowed(p, row, i);
  const Summary summary = merge_parts(static_cast<const Summary*>(p.scratch) + i * kParts);

  int token;
  if (summary.best.token >= p.vocab) {
    token = row.num_stop_ids > 0 ? row.stop_ids[0] : 0;  // nothing is allowed
  } else if (!(row.sampling.temperature > 0) || summary.all_finite == 0) {
    token = summary.best.token;
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
  // Without the words the kernel starts while the forward, which leaves no shared memory, still runs.
  const std::size_t word_bytes =
      params.behind_grammar_masks
          ? static_cast<std::size_t>(part_words(params.vocab)) * sizeof(WordBest)
          : 0;
  GAPLESS_RETURN_IF_ERROR(launch("summarize", stream,
                                 {.grid = dim3(kParts, static_cast<unsigned>(params.num_rows)),
                                  .block = dim3(kPartThreads),
                                  .shared_bytes = word_bytes},
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
