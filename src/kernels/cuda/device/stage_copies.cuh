// Copies into the ring's stages (stage_ring.cuh) where there is no copy engine, by warps that do nothing else. The
// streaming warp writes down what a stage wants and goes on to the next: one warp that did both had too little time for
// either. With several copying warps each has every kWarps-th stage, all of it, so a slot of the ring always is the same
// one's: it meets every phase of the slot's barrier.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/ring_space.h"

namespace gapless {

inline constexpr int kMaxStagePieces = 4;

struct CopyRequest {
  const char* from[kMaxStagePieces];  // nullptr: there is no such piece
  std::uint32_t to;                   // of the first piece; the others follow it
  int num_pieces;                     // 0: there are no more stages
  int piece_bytes;
};

// In shared memory.
template <bool kHasEngine>
struct CopyRequests {
  CopyRequest requests[kRingStages];
  std::uint64_t asked[kRingStages];  // mbarriers: the request of a slot's latest stage is written

  __device__ void init_requests() {
    for (std::uint64_t& barrier : asked) init_barrier(shared_address(&barrier), 1);
  }

  // A warp, all lanes together: lanes kPieces * i and up ask for the pieces of a stage, if `asks`, each at its own `from`. `to`: of
  // the stage's first piece.
  template <int kPieces>
  __device__ __forceinline__ void ask(bool asks, unsigned stage, std::uint32_t to, const char* from,
                                      int piece_bytes) {
    static_assert(kPieces <= kMaxStagePieces);
    const int piece = threadIdx.x % kPieces;
    CopyRequest& request = requests[stage % kRingStages];
    if (asks) request.from[piece] = from;
    if (asks && piece == 0) {
      request.to = to;
      request.num_pieces = kPieces;
      request.piece_bytes = piece_bytes;
    }
    __syncwarp();
    if (asks && piece == 0) arrive(shared_address(&asked[stage % kRingStages]));
  }

  // The same warp, in place of a stage: whose stage it would be may leave.
  __device__ void end_requests(unsigned stage) {
    __syncwarp();
    if (threadIdx.x % kWarp != 0) return;
    requests[stage % kRingStages].num_pieces = 0;
    arrive(shared_address(&asked[stage % kRingStages]));
  }

  // The index-th of kWarps copying warps. `full`: barriers of the slots, that their stages have arrived.
  template <int kWarps>
  __device__ void serve(int index, std::uint64_t* full) const {
    static_assert(kRingStages % kWarps == 0);
#pragma unroll 1
    for (unsigned stage = index;; stage += kWarps) {
      const unsigned slot = stage % kRingStages;
      wait_barrier(shared_address(&asked[slot]), phase_parity(stage));
      __syncwarp();
      const CopyRequest& request = requests[slot];
      const int num_pieces = request.num_pieces, bytes = request.piece_bytes;
      if (num_pieces == 0) return;
      const std::uint32_t to = request.to, barrier = shared_address(&full[slot]);
      const char* from[kMaxStagePieces];
#pragma unroll
      for (int piece = 0; piece < kMaxStagePieces; ++piece) from[piece] = request.from[piece];
#pragma unroll
      for (int piece = 0; piece < kMaxStagePieces; ++piece) {
        if (piece >= num_pieces) break;
        if (from[piece] == nullptr) continue;
        copy_bytes_async<Reading::kOnce>(to + piece * bytes, from[piece], bytes, barrier);
      }
      complete_copies(barrier);
    }
  }
};

// The engine is asked, not a warp: nobody calls the others.
template <>
struct CopyRequests<true> {
  __device__ void init_requests() {}
  template <int kPieces>
  __device__ void ask(bool /*asks*/, unsigned /*stage*/, std::uint32_t /*to*/, const char* /*from*/,
                      int /*piece_bytes*/) {}
  __device__ void end_requests(unsigned /*stage*/) {}
};

}  // namespace gapless
