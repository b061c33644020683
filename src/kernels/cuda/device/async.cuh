// Asynchronous copies, the barriers that complete them, clusters, and launch overlap.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"

namespace gapless {

// ---- Launch overlap (programmatic dependent launch). Every kernel of this folder may be started
// while its predecessor still runs. In return it calls
//   * wait_for_predecessor before it touches what an earlier kernel writes or reads. Every kernel
//     waits, even one with nothing to do, so each kernel's completion implies that of all before it.
//   * let_successor_start as soon as it likes: the successor waits for this kernel's completion
//     anyway.
// Three kernels read before they wait: row_linear and decoder_kernel weights, which no step writes,
// decoder_kernel also the row states (DecoderBlocksParams), and decode_attention the cache (its
// file says why it may).

__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void let_successor_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- Registers: the four warps of a group change how many each of their threads has.

template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- cp.async: 16 bytes per thread, global to shared.

// Copies 16 bytes, or writes 16 zero bytes when !valid (`from` must still be a mapped address).
__device__ __forceinline__ void copy_async_16(std::uint32_t to_shared, const void* from,
                                              bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_async_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wait_async_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- mbarriers in shared memory (addresses from shared_address).

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, int phase_parity) {
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

// ---- The copy engine: one box of a 2-D tensor to shared memory, completing on `barrier`.

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}

__device__ __forceinline__ void copy_box_async(std::uint32_t to_shared, const CUtensorMap* map,
                                               int column, int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to_shared),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

// The same engine without a tensor: contiguous bytes, a multiple of 16 at 16-byte aligned
// addresses.
__device__ __forceinline__ void copy_bytes_async(std::uint32_t to_shared, const void* from,
                                                 int bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same, of what is read once in a step: it is the first to leave the second-level cache again,
// and what else lies there stays. (Pages that rows share are read again by the next row.)
__device__ __forceinline__ void copy_bytes_once_async(std::uint32_t to_shared, const void* from,
                                                      int bytes, std::uint32_t barrier) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// ---- Clusters.

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

// A barrier among the first `threads` threads that name the same id (1 to 15).
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace gapless
