// mbarriers in shared memory (addresses from shared_address), and barriers of warps by number.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_path.h"
#include "kernels/cuda/device/mma.cuh"

namespace gapless {

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  if constexpr (cuda::kPath.has_copy_engine) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
}

__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// So many arrivals at once. Before 9.0 there is no such instruction: only one then.
__device__ __forceinline__ void arrive(std::uint32_t barrier, int count) {
  if constexpr (cuda::kPath.has_copy_engine) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
                 : "memory");
  } else {
    arrive(barrier);
  }
}

// Whether it is past the phase, without waiting.
__device__ __forceinline__ bool barrier_is_past(std::uint32_t barrier, int phase_parity) {
  int result;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}"
      : "=r"(result)
      : "r"(barrier), "r"(phase_parity)
      : "memory");
  return result != 0;
}

// Who waits sleeps. Before 9.0 there is no instruction for it, and who looked again and again was in the way of those who copy
// (docs/kernels_decode.md, *Without a copy engine*).
inline constexpr unsigned kNapNs = 20;
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, int phase_parity) {
  if constexpr (cuda::kPath.has_copy_engine) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}" ::"r"(barrier),
        "r"(phase_parity)
        : "memory");
  } else {
    while (!barrier_is_past(barrier, phase_parity)) __nanosleep(kNapNs);
  }
}

// A barrier among the first `threads` threads that name the same id (1 to 15).
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace gapless
