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

#ifndef GV_WARPS
#define GV_WARPS 2
#endif
#ifndef GV_FLIGHT
#define GV_FLIGHT 0
#endif
#ifndef GV_NOINC
#define GV_NOINC 0
#endif
#ifndef GV_NAP
#define GV_NAP 0
#endif
#ifndef GV_LEAD
#define GV_LEAD 0
#endif
#ifndef GV_GNAP
#define GV_GNAP 0
#endif
#ifndef GV_SNAP
#define GV_SNAP 0
#endif
#ifndef GV_OLD
#define GV_OLD 0
#endif
#ifndef GV_IMM
#define GV_IMM 1
#endif
#ifndef GV_256B
#define GV_256B 0
#endif
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

__device__ __forceinline__ void complete_stage(std::uint32_t barrier) {
#if GV_NOINC
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
  __syncwarp();
  if (threadIdx.x % kWarp == 0) arrive(barrier);
#else
  complete_copies(barrier);
#endif
}

// Bytes that lanes without a copy engine ask for with one address.
inline constexpr int kAsyncBlock = 4096;

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
#if GV_IMM
  return 0x12F0000000000000ull;
#endif
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// 16 bytes of what is read once or more often.
template <Reading kReading>
__device__ __forceinline__ void copy_16_of(std::uint32_t to_shared, const void* from) {
  if constexpr (kReading == Reading::kOnce) {
#if GV_256B
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(
                     to_shared),
                 "l"(from), "l"(read_once_policy())
                 : "memory");
#else
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to_shared),
                 "l"(from), "l"(read_once_policy())
                 : "memory");
#endif
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
                 : "memory");
  }
}

// The `own`-th of kLanes lanes that copy a piece together. Most of it goes without an addition for each copy: one warp
// asks for everything that its block streams, and has 25 cycles for each of these instructions.
template <Reading kReading, int kLanes>
__device__ __forceinline__ void copy_by_lanes(std::uint32_t to_shared, const void* from, int bytes,
                                              int own) {
  constexpr int kStep = kLanes * 16, kAtOnce = kAsyncBlock / kStep;
#if GV_OLD
#pragma unroll 4
  for (int i = own * 16; i < bytes; i += kStep) {
    copy_16_of<kReading>(to_shared + i, static_cast<const char*>(from) + i);
  }
  return;
#endif
  std::uint32_t to = to_shared + own * 16;
  const char* at = static_cast<const char*>(from) + own * 16;
#pragma unroll 1
  for (; bytes >= kAtOnce * kStep; bytes -= kAtOnce * kStep) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) copy_16_of<kReading>(to + i * kStep, at + i * kStep);
    to += kAtOnce * kStep;
    at += kAtOnce * kStep;
  }
#pragma unroll 1
  for (bytes -= own * 16; bytes > 0; bytes -= kStep) {
    copy_16_of<kReading>(to, at);
    to += kStep;
    at += kStep;
  }
}

template <Reading kReading = Reading::kOften>
__device__ __forceinline__ void copy_bytes_async(std::uint32_t to_shared, const void* from,
                                                 int bytes, std::uint32_t barrier) {
  if constexpr (!kHasCopyEngine) {
    copy_by_lanes<kReading, kWarp>(to_shared, from, bytes, threadIdx.x % kWarp);
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

// A warp, all lanes together: `pieces` of several stages that are read once, each `bytes` long.
// Lanes kPieces * i and up ask for those of a stage, if `asks`, and its barrier; what is nullptr is
// no piece. They have expected the copies (expect_copies), and the barriers are complete after.
template <int kPieces, int kWarps>
__device__ __forceinline__ void copy_pieces_once(bool asks, std::uint32_t to_shared,
                                                 const char* from, int bytes,
                                                 std::uint32_t barrier, int warp) {
  if constexpr (kHasCopyEngine) {
    if (asks && from != nullptr) {
      copy_bytes_async<Reading::kOnce>(to_shared, from, bytes, barrier);
    }
  } else {
    unsigned asking = __ballot_sync(kFullWarp, asks);
    while (asking != 0) {
      const int first = __ffs(static_cast<int>(asking)) - 1;
      constexpr int kUnroll = GV_OLD ? 1 : kPieces;
#pragma unroll kUnroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const auto address =
            __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(from), first + piece);
        const std::uint32_t to = __shfl_sync(kFullWarp, to_shared, first + piece);
        if (address == 0) continue;
        copy_by_lanes<Reading::kOnce, kWarps * kWarp>(to, reinterpret_cast<const void*>(address),
                                                      bytes,
                                                      warp * kWarp + threadIdx.x % kWarp);
      }
      complete_stage(__shfl_sync(kFullWarp, barrier, first));
      asking &= ~(((1u << (kPieces - 1) << 1) - 1) << first);
    }
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
