// A cluster of blocks per row picks its token; SampleParams in kernels.h says how. Each block takes
// a slice of the vocabulary, each thread some logits of it in registers, so the row is read once.
#include <cmath>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/token_order.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/sampling_uniform.h"

namespace gapless::cuda {
namespace {

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
  Best best;                    // candidate; token kNoToken: there is none
  ExpSum all;                   // of the whole vocabulary
  std::int64_t found_infinite;  // a candidate's logit was not finite
};

constexpr int kNoToken = 0x7fffffff;

struct SummaryShared {
  Best best[kSampleThreads / kWarp];
  ExpSum all[kSampleThreads / kWarp];
  Summary block;
};

// Over the cluster; the result in every thread. Logits of tokens that are no candidates become
// -infinity.
__device__ Summary summarize(float (&logits)[kLogitsPerThread], int first_token, int end_token,
                             const Allowed& allowed, SummaryShared& s) {
  Best best{-INFINITY, kNoToken};
  ExpSum all{-INFINITY, 0};
  bool found_infinite = false;
#pragma unroll
  for (int i = 0; i < kLogitsPerThread; ++i) {
    if (isfinite(logits[i])) all.largest = fmaxf(all.largest, logits[i]);
  }
#pragma unroll
  for (int i = 0; i < kLogitsPerThread; ++i) {
    const int token = first_token + i * kSampleThreads;
    const bool finite = isfinite(logits[i]);
    if (finite) all.sum += expf(logits[i] - all.largest);
    const bool candidate = token < end_token && allowed(token);
    if (candidate && finite) best = better(best, {logits[i], token});
    found_infinite |= candidate && !finite;
    if (!candidate || !finite) logits[i] = -INFINITY;
  }
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
  const bool block_infinite = __syncthreads_or(found_infinite) != 0;
  if (threadIdx.x == 0) {
    for (int w = 1; w < kSampleThreads / kWarp; ++w) {
      best = better(best, s.best[w]);
      all = merge(all, s.all[w]);
    }
    s.block = {best, all, block_infinite};
  }
  cluster_barrier();
  Summary whole = read_from_rank(s.block, 0);
  for (unsigned rank = 1; rank < kSampleRanks; ++rank) {
    const Summary part = read_from_rank(s.block, rank);
    whole = {better(whole.best, part.best), merge(whole.all, part.all),
             whole.found_infinite | part.found_infinite};
  }
  return whole;
}

// The filters keep a prefix of the order; the draw is at a share of the prefix's weight.
__device__ int draw(const float (&logits)[kLogitsPerThread], int first_token, const RowState& row,
                    float largest, TokenOrderShared& shared) {
  TokenOrder order(logits, first_token, largest, row.temperature, shared);
  const std::uint64_t total = order.total_weight();
  std::uint64_t kept = total;
  if (row.top_k > 0) {
    const std::uint64_t last = static_cast<std::uint64_t>(row.top_k) - 1;
    kept = min(kept, order.find({.by_count = true, .amount = last}).weight);
  }
  if (row.top_p < 1) {
    const double before = fmax(0.0, static_cast<double>(row.top_p)) * static_cast<double>(total);
    const Target target{.by_count = false, .amount = static_cast<std::uint64_t>(before)};
    kept = min(kept, order.find(target).weight);
  }
  if (row.min_p > 0) {
    // At least the first token stays.
    kept = min(kept, max(order.weight_above(row.min_p), std::uint64_t{kFullWeight}));
  }
  const double share = sampling_uniform(row.seed, row.num_generated);
  const auto amount = static_cast<std::uint64_t>(share * static_cast<double>(kept));
  return static_cast<int>(order.find({.by_count = false, .amount = min(amount, kept - 1)}).token);
}

__device__ float logprob_of(const float* logits, int token, const ExpSum& all) {
  const float logit = logits[token];
  return isfinite(logit) ? logit - all.largest - logf(all.sum) : kImpossibleLogprob;
}

// Blocks: x = slice of the vocabulary, a cluster side by side; y = row.
__global__ void __launch_bounds__(kSampleThreads) sample_kernel(SampleParams p) {
  extern __shared__ __align__(16) char raw_shared[];
  __shared__ SummaryShared summary_shared;
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t i = blockIdx.y;
  const bool writes = cluster_rank() == 0 && threadIdx.x == 0;
  const int row_index = p.rows[i];
  if (row_index < 0 || p.row_states[row_index].done != 0) {
    if (writes) {
      p.tokens[i] = -1;
      p.logprobs[i] = 0;
    }
    return;
  }
  const RowState& row = p.row_states[row_index];
  const float* row_logits = p.logits + i * p.logits_stride;
  const int slice = (p.vocab + kSampleRanks - 1) / kSampleRanks;
  const int begin = static_cast<int>(cluster_rank()) * slice;
  const int end = min(begin + slice, p.vocab);
  const int first_token = begin + static_cast<int>(threadIdx.x);
  float logits[kLogitsPerThread];
#pragma unroll
  for (int j = 0; j < kLogitsPerThread; ++j) {
    const int token = first_token + j * kSampleThreads;
    logits[j] = token < end ? row_logits[token] : -INFINITY;
  }
  const Allowed allowed(row, p.automata, p.host_masks + i * p.host_mask_stride);
  const Summary summary = summarize(logits, first_token, end, allowed, summary_shared);

  int token;
  if (summary.best.token == kNoToken) {
    token = row.num_stop_ids > 0 ? row.stop_ids[0] : 0;  // nothing is allowed
  } else if (!(row.temperature > 0) || summary.found_infinite != 0) {
    token = summary.best.token;
  } else {
    token = draw(logits, first_token, row, summary.best.logit,
                 *reinterpret_cast<TokenOrderShared*>(raw_shared));
  }
  if (writes) {
    p.tokens[i] = token;
    p.logprobs[i] = logprob_of(row_logits, token, summary.all);
  }
  cluster_barrier();  // no block leaves while another reads its memory
}

}  // namespace

Status sample(Stream& stream, const SampleParams& params) {
  if (params.vocab <= 0 || params.vocab > kMaxSampleVocab) {
    return Status(StatusCode::kInvalidArgument,
                  "sample: the vocabulary must have 1 to 65536 tokens");
  }
  return launch("sample", stream,
                {.grid = dim3(kSampleRanks, static_cast<unsigned>(params.num_rows)),
                 .block = dim3(kSampleThreads),
                 .shared_bytes = sizeof(TokenOrderShared),
                 .cluster = kSampleRanks},
                sample_kernel, params);
}

}  // namespace gapless::cuda
