// The most likely tokens of the rows that ask, one block per row; TopLogprobsParams in kernels.h
// says which.
//
// A token's key rises with its logit and falls with its id, so no two are equal.
//   1. Each thread finds the best key of its share of the vocabulary, every kLogprobThreads-th token.
//   2. The k-th largest of these is the threshold: k tokens at least reach it, and all that do
//      belong to k threads, so they are k * share at most, whatever the logits are.
//   3. A second pass collects them, and adds up exp(logit - largest).
//   4. A token's place is the number of collected keys above its own.
#include <cmath>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kLogprobThreads = 1024;
constexpr int kNumWarps = kLogprobThreads / kWarp;
static_assert(kNumWarps == kWarp, "one warp holds the best keys of all");
// Loads in flight per thread.
constexpr int kUnroll = 8;
// Largest vocabulary whose list (step 3) fits in shared memory.
constexpr int kMaxVocab = 1 << 18;

using Key = std::uint64_t;
constexpr Key kNoKey = 0;  // below that of every finite logit

__device__ __forceinline__ Key key_of(int token, float logit) {
  if (!isfinite(logit)) return kNoKey;
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 counts as 0
  const std::uint32_t rising = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return Key{rising} << 32 | ~static_cast<std::uint32_t>(token);
}

__device__ __forceinline__ int token_of(Key key) {
  return static_cast<int>(~static_cast<std::uint32_t>(key));
}

__device__ __forceinline__ float logit_of(Key key) {
  const auto rising = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float(rising ^ ((rising >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// Calls use(token, logit) for every token of the thread's share.
template <typename Use>
__device__ __forceinline__ void scan_share(const float* logits, int vocab, const Use& use) {
  for (int base = threadIdx.x; base < vocab; base += kLogprobThreads * kUnroll) {
    float values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int token = base + i * kLogprobThreads;
      values[i] = token < vocab ? logits[token] : INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) use(base + i * kLogprobThreads, values[i]);
  }
}

// Lane 0 gets the warp's largest key, lane 31 the smallest (a bitonic sort).
__device__ __forceinline__ Key sort_falling(Key key) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int size = 2; size <= kWarp; size *= 2) {
#pragma unroll
    for (int stride = size / 2; stride > 0; stride /= 2) {
      const Key other = __shfl_xor_sync(kFullWarp, key, stride);
      const bool keeps_larger = ((lane & stride) == 0) == ((lane & size) == 0);
      key = keeps_larger == (key > other) ? key : other;
    }
  }
  return key;
}

struct Shared {
  Key best[kNumWarps][kWarp];  // of each warp's threads, falling
  Key largest;
  Key threshold;
  int num_listed;
  float sums[kWarp];
};

// One warp merges the sorted lists until the k-th key. Lane w holds the head of list w.
__device__ __forceinline__ void find_threshold(int num_wanted, Shared& s) {
  const int lane = threadIdx.x;
  int at = 0;
  for (int place = 0; place < num_wanted; ++place) {
    const Key head = at < kWarp ? s.best[lane][at] : kNoKey;
    Key winner = head;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const Key other = __shfl_xor_sync(kFullWarp, winner, offset);
      winner = other > winner ? other : winner;
    }
    if (head == winner) ++at;
    if (lane != 0) continue;
    if (place == 0) s.largest = winner;
    s.threshold = winner;
  }
}

__global__ void __launch_bounds__(kLogprobThreads) top_logprobs_kernel(TopLogprobsParams p) {
  extern __shared__ __align__(16) char raw_shared[];
  Key* const list = reinterpret_cast<Key*>(raw_shared);
  __shared__ Shared s;
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t i = blockIdx.x;
  const int row = p.rows[i];
  const int num_wanted = row < 0 ? 0 : p.row_states[row].sampling.num_top_logprobs;
  if (num_wanted <= 0) return;
  const float* logits = p.logits + i * p.logits_stride;

  Key best = kNoKey;
  scan_share(logits, p.vocab, [&](int token, float logit) {
    const Key key = key_of(token, logit);
    best = key > best ? key : best;
  });
  s.best[threadIdx.x / kWarp][threadIdx.x % kWarp] = sort_falling(best);
  if (threadIdx.x == 0) s.num_listed = 0;
  __syncthreads();
  if (threadIdx.x < kWarp) find_threshold(num_wanted, s);
  __syncthreads();

  // kNoKey: there are fewer than k shares with a finite logit, and all of those are listed.
  const Key threshold = s.threshold;
  const float largest = logit_of(s.largest);
  float sum = 0;
  scan_share(logits, p.vocab, [&](int token, float logit) {
    const Key key = key_of(token, logit);
    if (key == kNoKey) return;
    sum += __expf(logit - largest);
    if (key >= threshold) list[atomicAdd(&s.num_listed, 1)] = key;
  });
  const float log_sum = logf(block_sum(sum, s.sums));
  __syncthreads();

  const int num_listed = s.num_listed;
  TopLogprob* const top = p.top + i * kMaxTopLogprobs;
  for (int mine = threadIdx.x; mine < num_listed; mine += kLogprobThreads) {
    const Key key = list[mine];
    int place = 0;
    for (int other = 0; other < num_listed; ++other) place += list[other] > key;
    if (place < num_wanted) top[place] = {token_of(key), logit_of(key) - largest - log_sum};
  }
  for (int place = num_listed + threadIdx.x; place < num_wanted; place += kLogprobThreads) {
    top[place] = {-1, kImpossibleLogprob};
  }
}

}  // namespace

Status top_logprobs(Stream& stream, const TopLogprobsParams& params) {
  if (params.vocab <= 0 || params.vocab > kMaxVocab) {
    return Status(StatusCode::kInvalidArgument,
                  "top_logprobs: the vocabulary must have 1 to 262144 tokens");
  }
  const auto share =
      static_cast<std::size_t>((params.vocab + kLogprobThreads - 1) / kLogprobThreads);
  return launch("top_logprobs", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)),
                 .block = dim3(kLogprobThreads),
                 .shared_bytes = kMaxTopLogprobs * share * sizeof(Key)},
                top_logprobs_kernel, params);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
