// One block per row picks its token; SampleParams in kernels.h says how.
#include <cmath>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/token_order.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/sampling_uniform.h"

namespace gapless::cuda {
namespace {

// Loads in flight per thread.
constexpr int kUnroll = 8;

// Calls use(token, logit) for every token, spread over the block.
template <typename Use>
__device__ __forceinline__ void scan_logits(const float* logits, int vocab, const Use& use) {
  for (int base = threadIdx.x; base < vocab; base += kSampleThreads * kUnroll) {
    float values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int token = base + i * kSampleThreads;
      values[i] = token < vocab ? logits[token] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int token = base + i * kSampleThreads;
      if (token < vocab) use(token, values[i]);
    }
  }
}

// Which tokens a row may take, in registers.
class Allowed {
 public:
  __device__ Allowed(const RowState& row, const AutomatonState* automata,
                     const std::uint32_t* host_mask)
      : listed_only_(row.automaton != kNoAutomaton),
        host_mask_((row.flags & kRowHostMask) != 0 ? host_mask : nullptr) {
    const AutomatonState* state = listed_only_ ? &automata[row.automaton] : nullptr;
    const int num_ids = listed_only_ ? state->num_edges : row.num_denied_ids;
    const std::int32_t* ids = listed_only_ ? state->tokens : row.denied_ids;
#pragma unroll
    for (int i = 0; i < kMaxIds; ++i) ids_[i] = i < num_ids ? ids[i] : -1;
  }

  __device__ bool operator()(int token) const {
    bool listed = false;
#pragma unroll
    for (int i = 0; i < kMaxIds; ++i) listed |= ids_[i] == token;
    if (listed_only_) return listed;
    if (listed) return false;
    return host_mask_ == nullptr || ((host_mask_[token / 32] >> (token % 32)) & 1u) != 0;
  }

 private:
  static constexpr int kMaxIds = kMaxDeniedIds;
  static_assert(kMaxIds == kMaxAutomatonEdges);
  std::int32_t ids_[kMaxIds];  // the automaton's edges, or the denied ids
  bool listed_only_;
  const std::uint32_t* host_mask_;  // nullptr: none
};

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
  Best best;        // candidate; token INT_MAX: there is none
  ExpSum all;       // of the whole vocabulary
  bool all_finite;  // every candidate's logit was finite
};

struct SummaryShared {
  Best best[kWarp];
  ExpSum all[kWarp];
};

// One pass over the row; the result in every thread.
__device__ Summary summarize(const float* logits, int vocab, const Allowed& allowed,
                             SummaryShared& s) {
  constexpr int kNoToken = 0x7fffffff;
  Best best{-INFINITY, kNoToken};
  ExpSum all{-INFINITY, 0};
  bool found_infinite = false;
  scan_logits(logits, vocab, [&](int token, float logit) {
    const bool finite = isfinite(logit);
    if (finite) {
      if (logit > all.largest) {
        all.sum *= expf(all.largest - logit);
        all.largest = logit;
      }
      all.sum += __expf(logit - all.largest);
    }
    if (!allowed(token)) return;
    if (finite) {
      best = better(best, {logit, token});
    } else {
      found_infinite = true;
    }
  });
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    best = better(best, {__shfl_down_sync(kFullWarp, best.logit, offset),
                         __shfl_down_sync(kFullWarp, best.token, offset)});
    all = merge(all, {__shfl_down_sync(kFullWarp, all.largest, offset),
                      __shfl_down_sync(kFullWarp, all.sum, offset)});
  }
  if (threadIdx.x % kWarp == 0) {
    s.best[threadIdx.x / kWarp] = best;
    s.all[threadIdx.x / kWarp] = all;
  }
  const bool all_finite = __syncthreads_or(found_infinite) == 0;
  best = s.best[0];
  all = s.all[0];
  for (int w = 1; w < kSampleThreads / kWarp; ++w) {
    best = better(best, s.best[w]);
    all = merge(all, s.all[w]);
  }
  return {best, all, all_finite};
}

// The filters keep a prefix of the order; the draw is at a share of the prefix's weight.
__device__ int draw(const float* logits, int vocab, const RowState& row, const Allowed& allowed,
                    float largest, TokenOrderShared& shared) {
  const auto scan = [&](auto use) {
    scan_logits(logits, vocab, [&](int token, float logit) {
      if (allowed(token)) use(token, logit);
    });
  };
  TokenOrder order(scan, largest, row.temperature, shared);
  const std::uint64_t total = order.total_weight();
  std::uint64_t kept = total;
  if (row.top_k > 0) {
    const std::uint64_t last = static_cast<std::uint64_t>(row.top_k) - 1;
    kept = min(kept, order.find({.by_count = true, .amount = last}).weight);
  }
  if (row.top_p < 1) {
    const double before = fmax(0.0, static_cast<double>(row.top_p)) * static_cast<double>(total);
    kept = min(
        kept, order.find({.by_count = false, .amount = static_cast<std::uint64_t>(before)}).weight);
  }
  if (row.min_p > 0) {
    __shared__ unsigned long long likely;
    if (threadIdx.x == 0) likely = 0;
    __syncthreads();
    std::uint64_t mine = 0;
    scan([&](int, float logit) {
      if (order.relative_probability(logit) >= row.min_p) mine += order.weight(logit);
    });
    atomicAdd(&likely, static_cast<unsigned long long>(mine));
    __syncthreads();
    // At least the first token stays.
    kept = min(kept, max(std::uint64_t{likely}, std::uint64_t{kFullWeight}));
  }
  const double share = sampling_uniform(row.seed, row.num_generated);
  const auto amount = static_cast<std::uint64_t>(share * static_cast<double>(kept));
  return order.find({.by_count = false, .amount = min(amount, kept - 1)}).token;
}

__device__ float logprob_of(const float* logits, int token, const ExpSum& all) {
  const float logit = logits[token];
  return isfinite(logit) ? logit - all.largest - logf(all.sum) : kImpossibleLogprob;
}

__global__ void __launch_bounds__(kSampleThreads) sample_kernel(SampleParams p) {
  extern __shared__ __align__(16) char raw_shared[];
  __shared__ SummaryShared summary_shared;
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t i = blockIdx.x;
  const int row_index = p.rows[i];
  if (row_index < 0 || p.row_states[row_index].done != 0) {
    if (threadIdx.x == 0) {
      p.tokens[i] = -1;
      p.logprobs[i] = 0;
    }
    return;
  }
  const RowState& row = p.row_states[row_index];
  const float* logits = p.logits + i * p.logits_stride;
  const Allowed allowed(row, p.automata, p.host_masks + i * p.host_mask_stride);
  const Summary summary = summarize(logits, p.vocab, allowed, summary_shared);

  int token;
  if (summary.best.token >= p.vocab) {
    token = row.num_stop_ids > 0 ? row.stop_ids[0] : 0;  // nothing is allowed
  } else if (!(row.temperature > 0) || !summary.all_finite) {
    token = summary.best.token;
  } else {
    token = draw(logits, p.vocab, row, allowed, summary.best.logit,
                 *reinterpret_cast<TokenOrderShared*>(raw_shared));
  }
  if (threadIdx.x == 0) {
    p.tokens[i] = token;
    p.logprobs[i] = logprob_of(logits, token, summary.all);
  }
}

}  // namespace

Status sample(Stream& stream, const SampleParams& params) {
  if (params.vocab <= 0 || params.vocab > kMaxSampleVocab) {
    return Status(StatusCode::kInvalidArgument,
                  "sample: the vocabulary must have 1 to 65536 tokens");
  }
  return launch("sample", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)),
                 .block = dim3(kSampleThreads),
                 .shared_bytes = sizeof(TokenOrderShared)},
                sample_kernel, params);
}

}  // namespace gapless::cuda
