// Clusters: blocks that run at the same time and read each other's shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_path.h"

namespace gapless {

inline constexpr bool kHasClusters = cuda::kPath.has_copy_engine;

// ---- Only where kHasClusters.

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster; orders their shared-memory accesses.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

__device__ __forceinline__ float load_from_rank(std::uint32_t address, unsigned rank) {
  std::uint32_t remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}

}  // namespace gapless
