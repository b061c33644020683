// Scalar functions and reductions over a warp. Every reduction has one fixed order.
#pragma once

#include <cstdint>

namespace gapless {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kWarp = 32;
inline constexpr float kLog2E = 1.4426950408889634f;

// The same in all lanes of a warp, and by this the compiler knows it: what depends on it does not take lanes apart.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(kFullWarp, value, 0);
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  return 0.5f * x * (1.0f + tanhf(kSqrt2OverPi * (x + 0.044715f * x * x * x)));
}

// 2^x in one instruction; 0 where that is smaller than 2^-126.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x in one instruction, with an error of one in the last place; 0 where x is infinite or larger than 2^126.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int kWidth = kWarp>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, offset);
  }
  return value;
}

template <int kWidth = kWarp>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, offset));
  }
  return value;
}

// Of the lanes below this one.
__device__ __forceinline__ int sum_of_lower_lanes(int own) {
  const int lane = threadIdx.x % kWarp;
  int sum = own;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int lower = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += lower;
  }
  return sum - own;
}

// The sum over the block, in every thread. `shared` holds one float per warp and may be used again
// right after the call. At most 32 warps; blockDim.x is a multiple of 32.
__device__ __forceinline__ float block_sum(float value, float* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int num_warps = blockDim.x / kWarp;
  value = warp_sum(value);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = lane < num_warps ? shared[lane] : 0.0f;
  value = warp_sum(value);
  __syncthreads();
  return value;
}

// The largest over the block, as block_sum.
__device__ __forceinline__ float block_max(float value, float* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int num_warps = blockDim.x / kWarp;
  value = warp_max(value);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = warp_max(shared[lane < num_warps ? lane : 0]);
  __syncthreads();
  return value;
}

}  // namespace gapless
