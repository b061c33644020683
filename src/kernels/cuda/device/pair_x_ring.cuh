// The activations of 65 to 128 rows, for both blocks of a cluster: slots of 64 rows by 128 columns, of which each block asks for
// every second one and sends it to both.
#pragma once

#include "kernels/cuda/device/clusters.cuh"
#include "kernels/cuda/device/x_ring.cuh"

namespace gapless {

__device__ __forceinline__ void arrive_at_rank(std::uint32_t barrier, unsigned rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void copy_to_pair(std::uint32_t to_shared, const void* from, int bytes,
                                             std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>(3))
      : "memory");
}

class PairXRing {
 public:
  static constexpr int kSlotBytes = 64 * 128 * 2;
  static constexpr int kBytes = static_cast<int>(kXSlots) * kSlotBytes;

  __device__ PairXRing(XRingControl& control, std::uint32_t data)
      : control_(control), data_(data) {}

  // One thread, stage after stage. is_local: for this block alone, from stage first_local on.
  __device__ void bring(unsigned x_stage, const Bf16* from, bool is_local,
                        unsigned first_local) const {
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned n = 2 * x_stage + half, slot = n % kXSlots;
      const std::uint32_t full = shared_address(&control_.full[slot]);
      if (n >= kXSlots) spin(full, parity(n - kXSlots));
      const Bf16* part = from + half * (kSlotBytes / 2);
      const std::uint32_t to = data_ + slot * kSlotBytes;
      if (is_local) {
        const unsigned own = n - 2 * first_local;
        if (own >= kXSlots)
          spin(shared_address(&control_.local_empty[slot]), parity(own - kXSlots));
        expect_copies(full, kSlotBytes);
        copy_bytes_async(to, part, kSlotBytes, full);
      } else {
        expect_copies(full, kSlotBytes);
        if (half != cluster_rank()) continue;
        if (n >= kXSlots) spin(shared_address(&control_.empty[slot]), parity(n - kXSlots));
        copy_to_pair(to, part, kSlotBytes, full);
      }
    }
  }
  __device__ std::uint32_t wait(unsigned n) const {
    const unsigned slot = n % kXSlots;
    wait_barrier(shared_address(&control_.full[slot]), parity(n));
    return data_ + slot * kSlotBytes;
  }
  // One lane of each warp.
  __device__ void give_back(unsigned n, bool is_local) const {
    const unsigned slot = n % kXSlots;
    if (is_local) {
      arrive(shared_address(&control_.local_empty[slot]));
    } else if (n % 2 == cluster_rank()) {
      arrive(shared_address(&control_.empty[slot]));
    } else {
      arrive_at_rank(shared_address(&control_.empty[slot]), n % 2);
    }
  }

 private:
  __device__ static int parity(unsigned n) { return n / kXSlots & 1; }
  __device__ static void spin(std::uint32_t barrier, int parity) {
    while (!barrier_is_past(barrier, parity)) {
    }
  }
  XRingControl& control_;
  const std::uint32_t data_;
};

}  // namespace gapless
