// A ring's bookkeeping (device/stage_ring.cuh): which stage is in a slot, and where stages lie.
// Host and device, so that it is tested without a GPU.
#pragma once

#include <algorithm>
#include <bit>

#include "base/host_device.h"

namespace gapless {

// Stage s has slot s % kRingStages.
inline constexpr unsigned kRingStages = 32;

// Where stages begin, whatever they hold: who reads one may reckon with it. So does the ring.
inline constexpr int kStageAlignment = 128;

// The bytes of a decode kernel's ring, where a block may have `shared_bytes` of shared memory and
// `rest_bytes` are for other things. The block aligns the ring itself.
GAPLESS_HOST_DEVICE constexpr int decoder_ring_bytes(int shared_bytes, int rest_bytes) {
  return (shared_bytes - kStageAlignment - rest_bytes
#ifdef CLOCKS
          - 512
#endif
          ) / kStageAlignment * kStageAlignment;
}

// The phase of its slot's barriers that a stage waits for, as they count.
GAPLESS_HOST_DEVICE inline int phase_parity(unsigned stage) {
  return stage / kRingStages & 1;
}

// Of the stages before `next`, the latest in a slot. Meaningless where there is none.
GAPLESS_HOST_DEVICE inline unsigned latest_in_slot(unsigned slot, unsigned next) {
  return next - 1 - (next - 1 - slot) % kRingStages;
}

// Of the stages from `first` to `next` - 1, how many in turn have the bit of their slot set in
// `slots`. At most kRingStages of them.
GAPLESS_HOST_DEVICE inline unsigned stages_in_turn(unsigned slots, unsigned first, unsigned next) {
  const unsigned limit = next - first;
#ifdef __CUDA_ARCH__
  const unsigned in_turn = __funnelshift_r(slots, slots, first % kRingStages);
  return min(static_cast<unsigned>(__clz(__brev(~in_turn))), limit);
#else
  const unsigned in_turn = std::rotr(slots, static_cast<int>(first % kRingStages));
  return std::min(static_cast<unsigned>(std::countr_one(in_turn)), limit);
#endif
}

// Where stages lie: pieces of one array, taken and given back first in, first out. Positions count
// bytes since the beginning, those that were left unused included: what lies in the ring is what
// was taken and not given back, a difference of two positions.
class RingSpace {
 public:
  // `bytes` hold any stage twice.
  GAPLESS_HOST_DEVICE explicit RingSpace(int bytes) : bytes_(bytes) {}

  // Of the next stages, all of one size, the k-th: whether it and those before it lie before the
  // array's end. A stage lies in one piece: the first for which that end is too near begins at 0,
  // and what is left is unused.
  GAPLESS_HOST_DEVICE bool is_before_end(int k, int size) const {
    return next_ + (k + 1) * size <= bytes_;
  }
  // Where it lies, and the position behind it; `num_before_end` of them are before the end. There
  // is one end only: they are no more than fill the array.
  GAPLESS_HOST_DEVICE int at(int k, int size, int num_before_end) const {
    return k < num_before_end ? next_ + k * size : (k - num_before_end) * size;
  }
  GAPLESS_HOST_DEVICE unsigned end(int k, int size, int num_before_end) const {
    const int unused = k < num_before_end ? 0 : bytes_ - next_ - num_before_end * size;
    return taken_ + static_cast<unsigned>((k + 1) * size + unused);
  }
  // Whether there is room up to a position if all up to another was given back.
  GAPLESS_HOST_DEVICE bool has_room(unsigned end, unsigned given_back) const {
    return end - given_back <= static_cast<unsigned>(bytes_);
  }

  // Takes the next `count` > 0 stages.
  GAPLESS_HOST_DEVICE void take(int count, int size, int num_before_end) {
    taken_ = end(count - 1, size, num_before_end);
    next_ = at(count - 1, size, num_before_end) + size;
  }

 private:
  int bytes_;
  int next_ = 0;        // where the last stage ends; up to bytes_
  unsigned taken_ = 0;  // position behind the last stage
};

}  // namespace gapless
