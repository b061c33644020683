// Positions in the sampling order of a row's tokens, without sorting them. A cluster of blocks
// shares a row; every thread holds some of its logits in registers.
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

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

inline constexpr int kSampleRanks = 8;  // blocks of a cluster
inline constexpr int kSampleThreads = 512;
inline constexpr int kLogitsPerThread = 16;
// Low halves of the weights of a whole vocabulary must add up within 32 bits.
inline constexpr int kMaxSampleVocab = 1 << 16;
static_assert(kSampleRanks * kSampleThreads * kLogitsPerThread == kMaxSampleVocab);

inline constexpr int kBins = 2048;
inline constexpr int kSegment = kBins / kSampleRanks;  // bins that one block adds up for all
inline constexpr int kListSize = kSampleThreads;
inline constexpr std::uint32_t kFullWeight = 1u << 31;  // of the most likely token

struct Measure {
  std::uint64_t count;
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

// What precedes each bin of this block's segment, over all blocks of the cluster.
struct RunningSums {
  Measure before[kSegment + 1];
  Measure segment_total;
  Measure total;  // of all segments
};

struct FoundBin {
  std::int64_t bin;  // -1: not in this block's segment
  Measure before;
  std::uint64_t size;
};

struct FoundToken {
  std::int64_t token;    // -1: no running sum exceeds the target
  std::uint64_t weight;  // running weight up to and with the token, or of all tokens
};

struct TokenOrderShared {
  // Sums of this block's tokens, the weights in 16-bit halves.
  std::uint32_t count[kBins], low[kBins], high[kBins];
  RunningSums slices;  // of the logit
  RunningSums finer;   // bins of the order keys' bits
  Measure warp_sums[kSegment / kWarp];
  FoundBin found_bin;
  FoundToken found_token;
  // In the first block: what is left of the cluster's tokens.
  std::uint64_t keys[kListSize];
  std::uint32_t weights[kListSize];
  std::uint32_t list_size;
};

// One row's candidates: kLogitsPerThread per thread, -infinity where there is none. All threads of
// the cluster call every function together.
class TokenOrder {
 public:
  // logits[i] belongs to token first_token + i * kSampleThreads.
  __device__ TokenOrder(const float (&logits)[kLogitsPerThread], int first_token, float largest,
                        float temperature, TokenOrderShared& shared)
      : logits_(logits),
        first_token_(first_token),
        largest_(largest),
        inverse_(fminf(1.0f / temperature, 1e30f)),
        s_(shared) {
    clear_bins();
    for_each([&](int, float logit) { add(slice(logit), weight(logit)); });
    add_up_cluster(s_.slices);
  }

  __device__ std::uint64_t total_weight() const { return s_.slices.total.weight; }

  __device__ FoundToken find(const Target& target) {
    FoundBin at = find_bin(s_.slices, {0, 0}, target);
    if (at.bin < 0) return {-1, total_weight()};
    const int in_slice = static_cast<int>(at.bin);

    // The tokens of the slice whose keys start with `prefix`.
    int shift = kKeyBits;
    std::uint64_t prefix = 0;
    auto for_each_left = [&](auto use) {
      for_each([&](int token, float logit) {
        if (slice(logit) != in_slice) return;
        const std::uint64_t key = order_key(token, logit);
        if (key >> shift == prefix) use(key, weight(logit));
      });
    };
    while (at.size > kListSize) {
      const int bits = min(kBinBits, shift);
      clear_bins();
      for_each_left([&](std::uint64_t key, std::uint32_t w) {
        add(static_cast<int>(key >> (shift - bits)) & ((1 << bits) - 1), w);
      });
      add_up_cluster(s_.finer);
      at = find_bin(s_.finer, at.before, target);
      prefix = prefix << bits | static_cast<std::uint64_t>(at.bin);
      shift -= bits;
    }
    for_each_left([&](std::uint64_t key, std::uint32_t w) {
      const std::uint32_t i = add_remote_32(in_first(&s_.list_size), 1);
      store_remote_64(in_first(&s_.keys[i]), key);
      store_remote_32(in_first(&s_.weights[i]), w);
    });
    cluster_barrier();
    if (cluster_rank() == 0) find_in_list(at.before, target);
    cluster_barrier();
    return read_from_rank(s_.found_token, 0);
  }

  // The weight of the tokens whose probability is at least `share` of the first one's.
  __device__ std::uint64_t weight_above(float share) {
    clear_bins();
    for_each([&](int, float logit) {
      if (relative_probability(logit) >= share) add(0, weight(logit));
    });
    add_up_cluster(s_.finer);
    return s_.finer.total.weight;
  }

 private:
  static constexpr int kIdBits = 16;
  static constexpr int kKeyBits = 32 + kIdBits;
  static constexpr int kBinBits = 11;
  static_assert(1 << kBinBits == kBins && kMaxSampleVocab == 1 << kIdBits);

  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) const {
#pragma unroll
    for (int i = 0; i < kLogitsPerThread; ++i) {
      if (logits_[i] > -INFINITY) use(first_token_ + i * kSampleThreads, logits_[i]);
    }
  }

  __device__ float relative_probability(float logit) const {
    return exp2f((logit - largest_) * inverse_ * kLog2E);
  }
  __device__ std::uint32_t weight(float logit) const {
    return __float2uint_rn(relative_probability(logit) * static_cast<float>(kFullWeight));
  }

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

  __device__ static std::uint32_t in_first(const void* local) {
    return address_in_rank(shared_address(local), 0);
  }

  __device__ void clear_bins() {
    for (int b = threadIdx.x; b < kBins; b += kSampleThreads) {
      s_.count[b] = s_.low[b] = s_.high[b] = 0;
    }
    __syncthreads();
  }

  __device__ void add(int bin, std::uint32_t token_weight) {
    atomicAdd(&s_.count[bin], 1u);
    if (token_weight == 0) return;
    atomicAdd(&s_.low[bin], token_weight & 0xffffu);
    atomicAdd(&s_.high[bin], token_weight >> 16);
  }

  // From all blocks' bins to running sums: each block adds up a segment of the bins, then all look
  // at the segments' totals.
  __device__ void add_up_cluster(RunningSums& sums) {
    cluster_barrier();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    Measure own{0, 0}, sum{0, 0};
    if (threadIdx.x < kSegment) {
      const int bin = cluster_rank() * kSegment + threadIdx.x;
#pragma unroll
      for (unsigned rank = 0; rank < kSampleRanks; ++rank) {
        auto read = [&](const std::uint32_t* bins) -> std::uint64_t {
          return load_remote_32(address_in_rank(shared_address(&bins[bin]), rank));
        };
        own = own + Measure{read(s_.count), read(s_.low) + (read(s_.high) << 16)};
      }
      sum = own;
#pragma unroll
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const Measure lower{__shfl_up_sync(kFullWarp, sum.count, offset),
                            __shfl_up_sync(kFullWarp, sum.weight, offset)};
        if (lane >= offset) sum = sum + lower;
      }
      if (lane == kWarp - 1) s_.warp_sums[warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < kSegment) {
      for (int w = 0; w < warp; ++w) sum = sum + s_.warp_sums[w];
      sums.before[threadIdx.x] = sum - own;
      if (threadIdx.x == kSegment - 1) sums.before[kSegment] = sums.segment_total = sum;
    }
    cluster_barrier();
    Measure base{0, 0}, total{0, 0};
#pragma unroll
    for (unsigned rank = 0; rank < kSampleRanks; ++rank) {
      if (rank == cluster_rank()) base = total;
      total = total + read_from_rank(sums.segment_total, rank);
    }
    if (threadIdx.x < kSegment) sums.before[threadIdx.x] = sums.before[threadIdx.x] + base;
    if (threadIdx.x == kSegment) {
      sums.before[kSegment] = sums.before[kSegment] + base;
      sums.total = total;
    }
    __syncthreads();
  }

  // The bin in which the running sum, `base` before the first bin, exceeds the target. Also empties
  // the list for what may follow.
  __device__ FoundBin find_bin(const RunningSums& sums, const Measure& base, const Target& target) {
    if (threadIdx.x == 0) {
      s_.found_bin = {-1, {0, 0}, 0};
      s_.list_size = 0;
    }
    __syncthreads();
    if (threadIdx.x < kSegment) {
      const Measure before = base + sums.before[threadIdx.x];
      const Measure with = base + sums.before[threadIdx.x + 1];
      if (!target.is_exceeded_by(before) && target.is_exceeded_by(with)) {
        s_.found_bin = {static_cast<std::int64_t>(cluster_rank()) * kSegment + threadIdx.x, before,
                        with.count - before.count};
      }
    }
    cluster_barrier();
    FoundBin found{-1, {0, 0}, 0};
    for (unsigned rank = 0; rank < kSampleRanks; ++rank) {
      const FoundBin there = read_from_rank(s_.found_bin, rank);
      if (there.bin >= 0) found = there;
    }
    return found;
  }

  __device__ void find_in_list(const Measure& before, const Target& target) {
    const int n = static_cast<int>(s_.list_size);
    if (static_cast<int>(threadIdx.x) >= n) return;
    const std::uint64_t key = s_.keys[threadIdx.x];
    Measure sum = before;
    for (int i = 0; i < n; ++i) {
      if (s_.keys[i] < key) sum = sum + Measure{1, s_.weights[i]};
    }
    const Measure with = sum + Measure{1, s_.weights[threadIdx.x]};
    if (!target.is_exceeded_by(sum) && target.is_exceeded_by(with)) {
      s_.found_token = {static_cast<std::int64_t>(key & (kMaxSampleVocab - 1)), with.weight};
    }
  }

  const float (&logits_)[kLogitsPerThread];
  const int first_token_;
  const float largest_;
  const float inverse_;
  TokenOrderShared& s_;
};

}  // namespace gapless
