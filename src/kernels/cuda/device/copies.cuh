// Asynchronous copies from global to shared memory that an mbarrier tells of.
//
// With a copy engine one thread asks for many bytes, the barrier is told how many to expect, and
// the engine counts them. Without, all lanes of a warp ask for 16 bytes each (cp.async), and the
// barrier expects their copies beside the one arrival that it was made for: so barriers are made
// alike, and whoever waits does not know the difference.
//
// Who asks (kCopyingLanes: one thread, or all lanes of a warp together) goes through
//   expect_copies(barrier, bytes)     of all until complete_copies
//   copy_...(..., barrier)
//   complete_copies(barrier)
// of one barrier after the other.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_path.h"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

inline constexpr bool kHasCopyEngine = cuda::kPath.has_copy_engine;
inline constexpr int kCopyingLanes = kHasCopyEngine ? 1 : kWarp;

__device__ __forceinline__ bool is_copying_lane() {
  return kCopyingLanes == kWarp || threadIdx.x % kWarp == 0;
}

// ---- cp.async: 16 bytes per thread.

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

// The barrier's phase ends no sooner than this thread's copies so far.
__device__ __forceinline__ void tie_async_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- What a barrier waits for.

__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void expect_copies(std::uint32_t barrier, int bytes) {
  if constexpr (kHasCopyEngine) arrive_expecting(barrier, bytes);
}

__device__ __forceinline__ void complete_copies(std::uint32_t barrier) {
  if constexpr (!kHasCopyEngine) {
    tie_async_copies(barrier);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(barrier);
  }
}

// ---- Contiguous bytes, a multiple of 16 at 16-byte aligned addresses.

// How long what was read stays in the second-level cache.
enum class Reading {
  kOften,  // as the cache sees fit
  // In a step: it is the first to leave again, and what else lies there stays. (Pages that rows
  // share are read again by the next row.)
  kOnce,
};

__device__ __forceinline__ std::uint64_t read_once_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The same policy, as that instruction makes it on all architectures from 8.0 to 9.0. A constant stays in uniform registers; what the
// instruction made was moved there again for each cp.async.
inline constexpr std::uint64_t kReadOncePolicy = 0x12f0000000000000;

// 16 bytes of each lane.
template <Reading kReading>
__device__ __forceinline__ void copy_16_bytes_async(std::uint32_t to_shared, const char* from) {
  if constexpr (kReading == Reading::kOnce) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to_shared),
                 "l"(from), "l"(kReadOncePolicy)
                 : "memory");
  } else {
    copy_async_16(to_shared, from, true);
  }
}

// All lanes of a warp, each its share. 4 KB at a time are copied from one address: a warp has few cycles for each of
// these instructions where memory is fast.
template <Reading kReading>
__device__ __forceinline__ void copy_by_lanes(std::uint32_t to_shared, const char* from,
                                              int bytes) {
  constexpr int kStep = kWarp * 16, kBlock = 4096;
  const int own = threadIdx.x % kWarp * 16;
  to_shared += own;
  from += own;
#pragma unroll 1
  for (; bytes >= kBlock; bytes -= kBlock) {
#pragma unroll
    for (int i = 0; i < kBlock; i += kStep) copy_16_bytes_async<kReading>(to_shared + i, from + i);
    to_shared += kBlock;
    from += kBlock;
  }
#pragma unroll 1
  for (int left = bytes - own; left > 0; left -= kStep) {
    copy_16_bytes_async<kReading>(to_shared, from);
    to_shared += kStep;
    from += kStep;
  }
}

template <Reading kReading = Reading::kOften>
__device__ __forceinline__ void copy_bytes_async(std::uint32_t to_shared, const void* from,
                                                 int bytes, std::uint32_t barrier) {
  if constexpr (!kHasCopyEngine) {
    copy_by_lanes<kReading>(to_shared, static_cast<const char*>(from), bytes);
  } else if constexpr (kReading == Reading::kOnce) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to_shared),
        "l"(from), "r"(bytes), "r"(barrier), "l"(read_once_policy())
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to_shared),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
  }
}

// ---- Between ordinary accesses and the copy engine, which sees memory by another way.

// Orders this thread's accesses to global memory with those of the copy engine.
__device__ __forceinline__ void publish_to_copy_engine() {
  if constexpr (kHasCopyEngine) asm volatile("fence.proxy.async.global;" ::: "memory");
}

// The same in shared memory; also for the matrix units that read operands there (wgmma).
__device__ __forceinline__ void publish_shared_to_engines() {
  if constexpr (kHasCopyEngine) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace gapless
