// Progress of the blocks of one launch, counted in global memory. All blocks must be resident at
// once: a block may wait for what any other still has to do.
//
// What a block wrote before it signals is visible to whoever waited for the count, through loads
// that bypass L1 (__ldcg). For copies by the copy engine, writers call publish_to_copy_engine (copies.cuh)
// before they signal, readers after they waited.
#pragma once

#include <cstdint>

namespace gapless {

// Alone in its cache line, so that those who poll one do not slow down those who signal another.
struct alignas(128) GridCounter {
  unsigned count;
};

// One thread, after a barrier with those whose writes it announces: the release covers them too.
__device__ __forceinline__ void signal(GridCounter& counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&counter.count) : "memory");
}

// One thread; others follow it through a barrier.
__device__ __forceinline__ void wait_for_count(const GridCounter& counter, unsigned target) {
  unsigned count;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(count)
                 : "l"(&counter.count)
                 : "memory");
  } while (count < target);
}

}  // namespace gapless
