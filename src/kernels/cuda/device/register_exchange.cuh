// Registers that change hands: the four warps of a group change how many each of their threads has.
// On paths without it all keep those that they started with.
#pragma once

#include "kernels/cuda/cuda_path.h"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

inline constexpr bool kHasRegisterExchange = cuda::kPath.has_warpgroups;

template <int kCount>
__device__ __forceinline__ void take_registers() {
  if constexpr (kHasRegisterExchange) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}

template <int kCount>
__device__ __forceinline__ void give_registers() {
  if constexpr (kHasRegisterExchange) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}

// The value, of which the compiler knows nothing where registers are not exchanged. So it computes
// what follows from it where it is needed, and not once ahead of a loop, to keep it in memory for
// want of registers.
__device__ __forceinline__ unsigned afresh(unsigned value) {
  if constexpr (!kHasRegisterExchange) asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ int afresh(int value) {
  return static_cast<int>(afresh(static_cast<unsigned>(value)));
}

// The same number in all lanes of a warp: where registers are not exchanged the compiler learns it, and has registers of the warp for it.
__device__ __forceinline__ int of_warp(int value) {
  if constexpr (!kHasRegisterExchange) return uniform(value);
  return value;
}

// The same on every path.
__device__ __forceinline__ unsigned always_afresh(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace gapless
