// Which experts a row takes, and with what weights (ExpertsParams). A warp chooses for one row.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/limits.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

struct ExpertChoice {
  std::int32_t expert;
  float weight;
};

// Keys of experts are ordered as the experts are: the larger logit first, of equal logits the lower
// index. What is not a number counts as the smallest logit. No key is 0.
__device__ __forceinline__ unsigned expert_key(Bf16 logit, int expert) {
  float value = __bfloat162float(logit);
  if (isnan(value)) value = -INFINITY;
  if (value == 0.0f) value = 0.0f;  // -0 is equal to 0
  const unsigned bits = __float_as_uint(value) >> 16;
  const unsigned ordered = (bits & 0x8000u) != 0 ? ~bits & 0xffffu : bits | 0x8000u;
  return ordered << 16 | (0xffffu - static_cast<unsigned>(expert));
}

__device__ __forceinline__ int expert_of_key(unsigned key) {
  return static_cast<int>(0xffffu - (key & 0xffffu));
}

__device__ __forceinline__ float logit_of_key(unsigned key) {
  const unsigned ordered = key >> 16;
  const unsigned bits = (ordered & 0x8000u) != 0 ? ordered & 0x7fffu : ~ordered & 0xffffu;
  return __uint_as_float(bits << 16);
}

// All lanes of a warp together. Lane k < count gets the k-th best expert of the row and its weight.
template <int kMostExperts = kMaxExperts>
__device__ __forceinline__ ExpertChoice choose_experts(const Bf16* logits, int num_experts,
                                                       int count) {
  constexpr int kPerLane = kMostExperts / kWarp;
  const int lane = threadIdx.x % kWarp;
  unsigned own[kPerLane];  // keys of experts lane, lane + 32, ...; 0: none, or taken
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarp + lane;
    own[i] = expert < num_experts ? expert_key(logits[expert], expert) : 0;
  }
  unsigned chosen = 0;
  for (int k = 0; k < count; ++k) {
    unsigned best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, own[i]);
    best = __reduce_max_sync(kFullWarp, best);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) own[i] = own[i] == best ? 0 : own[i];
    if (lane == k) chosen = best;
  }
  const float largest = logit_of_key(__shfl_sync(kFullWarp, chosen, 0));
  const float power = expf(logit_of_key(chosen) - largest);
  float sum = 0;
  for (int k = 0; k < count; ++k) sum += __shfl_sync(kFullWarp, power, k);
  return {expert_of_key(chosen), round_to_bf16(power / sum)};
}

}  // namespace gapless
