// Registers that change hands: the four warps of a group change how many each of their threads has.
// On paths without it all keep those that they started with.
#pragma once

#include "kernels/cuda/cuda_path.h"

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

}  // namespace gapless
