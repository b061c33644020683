// A small ring in shared memory for the activations of products by warpgroups (warpgroup_product.cuh): slots
// of 128 columns of all rows. One thread fills them as soon as the activations are known, in the order
// of the products' stages, and the warpgroup whose stage it is multiplies by a slot and gives it back.
//
// Apart from the stages of weights (stage_ring.cuh): those are asked for far ahead, when there are no
// activations yet, and would keep room empty for them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

// Even, so that a slot is the same warpgroup's throughout a product: it meets every phase. More leave fewer
// stages of weights.
inline constexpr unsigned kXSlots = 4;
static_assert(kXSlots % 2 == 0);

// In shared memory.
struct XRingControl {
  std::uint64_t full[kXSlots];   // mbarriers: the activations have arrived
  std::uint64_t empty[kXSlots];  // used up

  __device__ void init(int sharers) {
    for (std::uint64_t& barrier : full) init_barrier(shared_address(&barrier), 1);
    for (std::uint64_t& barrier : empty) init_barrier(shared_address(&barrier), sharers);
  }
};

template <int kSlotBytes>
class XRing {
 public:
  static constexpr int kBytes = static_cast<int>(kXSlots) * kSlotBytes;

  __device__ XRing(XRingControl& control, std::uint32_t data) : control_(control), data_(data) {}

  // One thread, stage after stage of those with activations.
  __device__ void bring(unsigned x_stage, const void* from) const {
    const unsigned slot = x_stage % kXSlots;
    if (x_stage >= kXSlots) {
      const std::uint32_t empty = shared_address(&control_.empty[slot]);
      // Who waits may sleep a little longer than that.
      while (!barrier_is_past(empty, parity(x_stage - kXSlots))) {
      }
    }
    const std::uint32_t full = shared_address(&control_.full[slot]);
    expect_copies(full, kSlotBytes);
    copy_bytes_async(data_ + slot * kSlotBytes, from, kSlotBytes, full);
    complete_copies(full);
  }

  // The stage's warps: returns where its activations are.
  __device__ std::uint32_t wait(unsigned x_stage) const {
    const unsigned slot = x_stage % kXSlots;
    wait_barrier(shared_address(&control_.full[slot]), parity(x_stage));
    return data_ + slot * kSlotBytes;
  }
  // One lane of each, all together as often as there are sharers.
  __device__ void give_back(unsigned x_stage, int arrivals) const {
    arrive(shared_address(&control_.empty[x_stage % kXSlots]), arrivals);
  }

 private:
  __device__ static int parity(unsigned x_stage) { return x_stage / kXSlots & 1; }

  XRingControl& control_;
  const std::uint32_t data_;
};

}  // namespace gapless
