// Progress of the blocks of one launch, counted in global memory. A block may wait for what others still
// have to do, so those must be resident: all blocks are at once, or those that others wait for come first
// and wait for nobody.
//
// What a block wrote before it signals is visible to whoever waited for the count, through loads
// that bypass L1 (__ldcg). For copies by the copy engine, writers call publish_to_copy_engine (copies.cuh)
// before they signal, readers after they waited.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"

namespace gapless {

// Alone in its cache line, so that those who poll one do not slow down those who signal another.
struct alignas(128) GridCounter {
  unsigned count;
};

// One thread, after a barrier with those whose writes it announces: the release covers them too.
__device__ __forceinline__ void signal(unsigned& counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&counter) : "memory");
}
__device__ __forceinline__ void signal(GridCounter& counter) {
  signal(counter.count);
}
// By more than one, and gives back the count before.
__device__ __forceinline__ unsigned signal_by(unsigned& counter, unsigned count) {
  unsigned before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(&counter), "r"(count)
               : "memory");
  return before;
}

// The same in shared memory, for warps of the block that look at what `before` says.
__device__ __forceinline__ std::uint32_t signal_in_block(std::uint32_t& counter) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "r"(shared_address(&counter))
               : "memory");
  return before;
}

// One thread; others follow it through a barrier.
__device__ __forceinline__ void wait_for_count(const unsigned& counter, unsigned target) {
  unsigned count;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(&counter) : "memory");
  } while (count < target);
}
__device__ __forceinline__ void wait_for_count(const GridCounter& counter, unsigned target) {
  wait_for_count(counter.count, target);
}

}  // namespace gapless
