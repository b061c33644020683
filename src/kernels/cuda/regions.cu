// From the region heads' logits to values.
#include <cmath>

#include "kernels/coordinate_bin.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/row_linear.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kRegionThreads = 256;
// Bins whose logits a thread asks for at once.
constexpr int kInFlight = 8;

// Of a row, as kNumRanks sums: a number that is known here, so that all are asked for at once.
template <int kNumRanks>
class Logits {
 public:
  __device__ Logits(const RegionLogits& head, std::int64_t row, int out)
      : sums_(head.sums + row * out),
        bias_(static_cast<const Bf16*>(head.bias)),
        rank_stride_(head.rank_stride) {}

  __device__ float operator[](int i) const {
    float sums[kNumRanks];
#pragma unroll
    for (int rank = 0; rank < kNumRanks; ++rank) sums[rank] = sums_[rank * rank_stride_ + i];
    const float bias = bias_ != nullptr ? __bfloat162float(bias_[i]) : 0;
    float sum = 0;
#pragma unroll
    for (int rank = 0; rank < kNumRanks; ++rank) sum += sums[rank];
    return bias_ != nullptr ? sum + bias : sum;
  }
  // Those behind the first ones.
  __device__ Logits from(int first) const {
    Logits rest = *this;
    rest.sums_ += first;
    if (rest.bias_ != nullptr) rest.bias_ += first;
    return rest;
  }

 private:
  const float* sums_;
  const Bf16* bias_;
  std::int64_t rank_stride_;
};

struct Best {
  float logit;
  int bin;
};

__device__ Best better(Best a, Best b) {
  return b.logit > a.logit || (b.logit == a.logit && b.bin < a.bin) ? b : a;
}

// Of each group of kGroupThreads threads its own logits: the largest one, the lowest bin among equals; in all of its threads. `shared`
// holds one Best per warp of the block, and all of the block calls.
template <int kGroupThreads, int kNumRanks>
__device__ int argmax(const Logits<kNumRanks>& logits, int num_bins, Best* shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  Best best{-INFINITY, num_bins};
  for (int first = thread % kGroupThreads; first < num_bins; first += kInFlight * kGroupThreads) {
    float own[kInFlight];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      const int i = first + n * kGroupThreads;
      own[n] = i < num_bins ? logits[i] : -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      const int i = first + n * kGroupThreads;
      if (i < num_bins) best = better(best, {own[n], i});
    }
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    best = better(best, {__shfl_xor_sync(kFullWarp, best.logit, offset),
                         __shfl_xor_sync(kFullWarp, best.bin, offset)});
  }
  if (thread % kWarp == 0) shared[thread / kWarp] = best;
  __syncthreads();
  const Best* of_group = shared + thread / kGroupThreads * (kGroupThreads / kWarp);
  for (int w = 0; w < kGroupThreads / kWarp; ++w) best = better(best, of_group[w]);
  return min(best.bin, num_bins - 1);  // not a number everywhere: some bin
}

// 1 / (sum of exp(logit - that of `best`)), in every thread, added up in a fixed order. `shared` as above.
template <int kNumRanks>
__device__ float confidence_of(int best, const Logits<kNumRanks>& logits, int num_bins,
                               float* shared) {
  float sum = 0;
  const float largest = logits[best];
  for (int i = threadIdx.x; i < num_bins; i += kRegionThreads) sum += expf(logits[i] - largest);
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, offset);
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = sum;
  __syncthreads();
  float whole = 0;
  for (int w = 0; w < kRegionThreads / kWarp; ++w) whole += shared[w];
  __syncthreads();
  return 1 / whole;
}

__device__ float size_of_bin(int bin, int num_bins, bool linear) {
  if (linear) return static_cast<float>(static_cast<double>(bin) / num_bins);
  return static_cast<float>(exp2(10.0 * bin / (num_bins - 1) - 10.0));
}

// One block per row.
template <int kNumRanks>
__global__ void __launch_bounds__(kRegionThreads)
    pick_region_values_kernel(DecodeRegionsParams p, RegionLogits coord, RegionLogits size,
                              unsigned* arrived) {
  __shared__ Best shared[kRegionThreads / kWarp];
  __shared__ float shared_sums[kRegionThreads / kWarp];
  let_successor_start();
  // region_products has waited for what made the rows' states and tokens before this kernel started.
  if (arrived == nullptr) wait_for_predecessor();
  const std::int64_t i = blockIdx.x;
  const int row = p.rows[i];
  const bool decodes = row >= 0 && p.row_states[row].done == 0 &&
                       (p.row_states[row].flags & kRowDecodesRegions) != 0;
  const std::int32_t token = p.tokens[i];
  wait_for_predecessor();
  if (arrived != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *arrived = 0;
  if (!decodes) return;
  const bool wants_confidence = (p.row_states[row].flags & kRowWantsConfidence) != 0;
  float x, y, x_confidence = 0, y_confidence = 0;
  if (token == p.coord_id) {
    const int num_bins = p.weights.coord_fc2.out;
    const Logits<kNumRanks> logits(coord, i, num_bins);
    const int bin = argmax<kRegionThreads>(logits, num_bins, shared);
    if (wants_confidence) x_confidence = confidence_of(bin, logits, num_bins, shared_sums);
    x = coordinate_of_bin(bin, num_bins, p.coord_divisor);
    y = 0;
  } else if (token == p.size_id) {
    const int num_bins = p.weights.size_fc2.out / 2;
    const Logits<kNumRanks> logits(size, i, 2 * num_bins);
    // Half of the block for each.
    __shared__ int bins[2];
    constexpr int kHalf = kRegionThreads / 2;
    const int half = static_cast<int>(threadIdx.x) / kHalf;
    const int own = argmax<kHalf>(half == 0 ? logits : logits.from(num_bins), num_bins, shared);
    if (threadIdx.x % kHalf == 0) bins[half] = own;
    __syncthreads();
    const int width = bins[0], height = bins[1];
    x = size_of_bin(width, num_bins, p.linear_sizes);
    y = size_of_bin(height, num_bins, p.linear_sizes);
    if (wants_confidence) {
      x_confidence = confidence_of(width, logits, num_bins, shared_sums);
      y_confidence = confidence_of(height, logits.from(num_bins), num_bins, shared_sums);
    }
  } else {
    return;
  }
  if (threadIdx.x == 0) {
    p.values[2 * i] = x;
    p.values[2 * i + 1] = y;
    if (wants_confidence) {
      p.confidences[i].x = x_confidence;
      p.confidences[i].y = y_confidence;
    }
  }
}

}  // namespace

Status pick_region_values(Stream& stream, const DecodeRegionsParams& params,
                          const RegionLogits& coord, const RegionLogits& size, unsigned* arrived) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.num_rows)),
                          .block = dim3(kRegionThreads)};
  return coord.num_ranks == 1
             ? launch("pick_region_values", stream, shape, pick_region_values_kernel<1>, params,
                      coord, size, arrived)
             : launch("pick_region_values", stream, shape, pick_region_values_kernel<kColumnRanks>,
                      params, coord, size, arrived);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
