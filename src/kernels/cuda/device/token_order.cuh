// Positions in the sampling order of a row's tokens, without sorting them.
//
// The order: falling logit, the lower id first among equals. Weights exp((logit - largest) /
// temperature) are 31-bit fixed-point integers, so that sums do not depend on the order in which
// threads add them: a row's token is the same in every run. (What is lost: tokens less likely than
// 2^-32 of the best.)
//
// The question is always: which is the first token at which the running count, or weight, exceeds
// a target? A histogram over kBins slices of the logit says in which slice; slices with more than
// kListSize tokens are split again by the bits of their order keys; what is left is compared
// pairwise.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/math.cuh"

namespace gapless {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kBins = 2 * kSampleThreads;
inline constexpr int kListSize = kSampleThreads;
inline constexpr std::uint32_t kFullWeight = 1u << 31;  // of the most likely token
// Ids of a vocabulary take 16 bits, or 18.
inline constexpr int kFewIdBits = 16;
inline constexpr int kManyIdBits = 18;
inline constexpr int kMaxSampleVocab = 1 << kManyIdBits;

struct Measure {
  std::uint32_t count;
  std::uint64_t weight;

  __device__ Measure operator+(const Measure& o) const {
    return {count + o.count, weight + o.weight};
  }
  __device__ Measure operator-(const Measure& o) const {
    return {count - o.count, weight - o.weight};
  }
};

// What the running sum of which exceeds what.
struct Target {
  bool by_count;
  std::uint64_t amount;

  __device__ bool is_exceeded_by(const Measure& sum) const {
    return (by_count ? sum.count : sum.weight) > amount;
  }
};

// Counts and weights of bins while they are filled; then, in the same memory, what precedes each
// bin. A weight is added in parts, so narrow that those of a whole vocabulary add up within 32 bits.
template <int kIdBits>
struct TokenHistogram {
  static constexpr int kPartBits = 32 - kIdBits;
  static constexpr int kNumParts = (31 + kPartBits - 1) / kPartBits;

  std::uint32_t count[kBins];
  union {
    std::uint32_t parts[kNumParts][kBins];  // the lowest bits first
    std::uint64_t weight[kBins];
  };
  Measure total;

  __device__ void clear() {
    __syncthreads();  // what it held may still be read
    for (int b = threadIdx.x; b < kBins; b += kSampleThreads) {
      count[b] = 0;
      for (int part = 0; part < kNumParts; ++part) parts[part][b] = 0;
    }
    __syncthreads();
  }
  __device__ void add(int bin, std::uint32_t weight_of_token) {
    atomicAdd(&count[bin], 1u);
    if (weight_of_token == 0) return;
#pragma unroll
    for (int part = 0; part < kNumParts; ++part) {
      atomicAdd(&parts[part][bin],
                (weight_of_token >> (part * kPartBits)) & ((1u << kPartBits) - 1));
    }
  }
  // Before accumulate().
  __device__ Measure sum_of(int bin) const {
    Measure sum{count[bin], 0};
    for (int part = 0; part < kNumParts; ++part) {
      sum.weight += std::uint64_t{parts[part][bin]} << (part * kPartBits);
    }
    return sum;
  }
  __device__ Measure before(int bin) const {
    return bin < kBins ? Measure{count[bin], weight[bin]} : total;
  }
};

template <int kIdBits>
struct TokenOrderShared {
  TokenHistogram<kIdBits> first;  // over slices of the logit
  TokenHistogram<kIdBits> finer;  // over bits of the order keys
  std::uint64_t keys[kListSize];
  std::uint32_t weights[kListSize];
  Measure warp_sums[kWarp];
  int list_size;
  int found;       // bin or list entry, -1: none
  Measure before;  // what precedes it
};

// Sums of bins to sums before bins: two bins per thread.
template <int kIdBits>
__device__ inline void accumulate(TokenHistogram<kIdBits>& h, Measure* warp_sums) {
  __syncthreads();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int bin = 2 * threadIdx.x;
  Measure own[2];
  for (int i = 0; i < 2; ++i) {
    own[i] = h.sum_of(bin + i);
  }
  Measure sum = own[0] + own[1];
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Measure lower{__shfl_up_sync(kFullWarp, sum.count, offset),
                        __shfl_up_sync(kFullWarp, sum.weight, offset)};
    if (lane >= offset) sum = sum + lower;
  }
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();  // also: every thread has read its bins
  Measure before = sum - own[0] - own[1];
  for (int w = 0; w < warp; ++w) before = before + warp_sums[w];
  h.count[bin] = before.count;
  h.weight[bin] = before.weight;
  h.count[bin + 1] = before.count + own[0].count;
  h.weight[bin + 1] = before.weight + own[0].weight;
  if (threadIdx.x == kSampleThreads - 1) h.total = before + own[0] + own[1];
  __syncthreads();
}

// The bin in which the running sum, `base` before the first bin, exceeds the target; to s.found,
// s.before.
template <int kIdBits>
__device__ inline void find_bin(const TokenHistogram<kIdBits>& h, const Measure& base,
                                const Target& target, TokenOrderShared<kIdBits>& s) {
  __syncthreads();  // what was found last may still be read
  if (threadIdx.x == 0) s.found = -1;
  __syncthreads();
  for (int bin = 2 * threadIdx.x; bin < 2 * static_cast<int>(threadIdx.x) + 2; ++bin) {
    const Measure before = base + h.before(bin);
    if (!target.is_exceeded_by(before) && target.is_exceeded_by(base + h.before(bin + 1))) {
      s.found = bin;
      s.before = before;
    }
  }
  __syncthreads();
}

// The candidates of one row. `Scan` calls a function with every candidate's (token, logit), spread
// over the block's threads.
template <int kIdBits, typename Scan>
class TokenOrder {
 public:
  struct Position {
    int token;             // -1: no running sum exceeds the target
    std::uint64_t weight;  // running weight up to and with the token, or of all tokens
  };

  // Fills the first histogram. All threads of the block call every function of this class together.
  __device__ TokenOrder(const Scan& scan, float largest, float temperature,
                        TokenOrderShared<kIdBits>& shared)
      : scan_(scan), largest_(largest), inverse_(fminf(1.0f / temperature, 1e30f)), s_(shared) {
    s_.first.clear();
    scan_([&](int, float logit) { s_.first.add(slice(logit), weight(logit)); });
    accumulate(s_.first, s_.warp_sums);
  }

  __device__ std::uint64_t total_weight() const { return s_.first.total.weight; }

  __device__ float relative_probability(float logit) const {
    return exp2f((logit - largest_) * inverse_ * kLog2E);
  }
  __device__ std::uint32_t weight(float logit) const {
    return __float2uint_rn(relative_probability(logit) * static_cast<float>(kFullWeight));
  }

  __device__ Position find(const Target& target) {
    find_bin(s_.first, {0, 0}, target, s_);
    const int in_slice = s_.found;
    if (in_slice < 0) return {-1, total_weight()};
    Measure before = s_.before;
    std::uint32_t size = s_.first.before(in_slice + 1).count - before.count;

    // The tokens of the slice whose keys start with `prefix`.
    int shift = kKeyBits;
    std::uint64_t prefix = 0;
    auto scan_rest = [&](auto use) {
      scan_([&](int token, float logit) {
        if (slice(logit) != in_slice) return;
        const std::uint64_t key = order_key(token, logit);
        if (key >> shift == prefix) use(key, weight(logit));
      });
    };
    while (size > kListSize) {
      const int bits = min(kBinBits, shift);
      s_.finer.clear();
      scan_rest([&](std::uint64_t key, std::uint32_t w) {
        s_.finer.add(static_cast<int>(key >> (shift - bits)) & ((1 << bits) - 1), w);
      });
      accumulate(s_.finer, s_.warp_sums);
      find_bin(s_.finer, before, target, s_);
      size = s_.finer.before(s_.found + 1).count - s_.finer.before(s_.found).count;
      before = s_.before;
      prefix = prefix << bits | static_cast<std::uint64_t>(s_.found);
      shift -= bits;
    }
    if (threadIdx.x == 0) s_.list_size = 0;
    __syncthreads();
    scan_rest([&](std::uint64_t key, std::uint32_t w) {
      const int at = atomicAdd(&s_.list_size, 1);
      s_.keys[at] = key;
      s_.weights[at] = w;
    });
    __syncthreads();
    return find_in_list(before, target);
  }

 private:
  static constexpr int kKeyBits = 32 + kIdBits;
  static constexpr int kBinBits = 11;
  static_assert(1 << kBinBits == kBins);

  // Slices are equally wide, and the last one takes all that is less likely than 2^-32 of the best.
  __device__ int slice(float logit) const {
    constexpr float kSlicesPerUnit = (kBins - 1) / 22.18f;  // 32 ln 2
    return static_cast<int>(
        fminf((largest_ - logit) * inverse_ * kSlicesPerUnit, static_cast<float>(kBins - 1)));
  }

  // Rises along the order.
  __device__ static std::uint64_t order_key(int token, float logit) {
    const std::uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 counts as 0
    const std::uint32_t rising = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
    return std::uint64_t{~rising} << kIdBits | static_cast<std::uint32_t>(token);
  }

  __device__ Position find_in_list(const Measure& before, const Target& target) {
    const int n = s_.list_size;
    if (threadIdx.x == 0) s_.found = -1;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < n) {
      const std::uint64_t key = s_.keys[threadIdx.x];
      Measure sum = before;
      for (int i = 0; i < n; ++i) {
        if (s_.keys[i] < key) sum = sum + Measure{1, s_.weights[i]};
      }
      const Measure with = sum + Measure{1, s_.weights[threadIdx.x]};
      if (!target.is_exceeded_by(sum) && target.is_exceeded_by(with)) {
        s_.found = static_cast<int>(key & ((1u << kIdBits) - 1));
        s_.before = with;
      }
    }
    __syncthreads();
    return {s_.found, s_.before.weight};
  }

  const Scan& scan_;
  const float largest_;
  const float inverse_;
  TokenOrderShared<kIdBits>& s_;
};

}  // namespace gapless
