// A ring in shared memory through which one warp streams what never changes during a launch
// (weights, cached keys and values) to the computing warps, far ahead of them.
//
// A stage is what one computing warp works on at a time: stage s belongs to warp s % kRingConsumers
// alone, so warps work on different stages at the same time, and each meets every phase of the
// barriers of its own. A stage lies in one piece. It may begin with room for activations, which
// another warp fills in when they are there. All who use the ring count the same stages.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/ring_space.h"

namespace gapless {

inline constexpr int kRingConsumers = 8;   // warps
inline constexpr int kRingStages = kWarp;  // at most; each has a lane of the streaming warp
// Where stages begin, whatever they hold: who reads one may reckon with it.
inline constexpr int kStageAlignment = 128;
static_assert(kRingStages % kRingConsumers == 0);

// Where a stage lies, in one word that says of which stage it speaks.
struct StagePlace {
  static constexpr int kAddressBits = 18;

  __device__ static std::uint32_t make(unsigned stage, std::uint32_t address) {
    return stage / kRingStages << kAddressBits | address;
  }
  __device__ static bool is_of(std::uint32_t place, unsigned stage) {
    return place >> kAddressBits == (stage / kRingStages & (~0u >> kAddressBits));
  }
  __device__ static std::uint32_t address(std::uint32_t place) {
    return place & ((1u << kAddressBits) - 1);
  }
};

// In shared memory.
struct RingControl {
  std::uint64_t full[kRingStages];    // mbarriers: what was streamed has arrived
  std::uint64_t x_full[kRingStages];  // the activations have; arrives for stages with room for them
  std::uint64_t empty[kRingStages];   // used up
  std::uint32_t places[kRingStages];  // StagePlace of the latest stage

  __device__ void init() {
    for (int i = 0; i < kRingStages; ++i) {
      init_barrier(shared_address(&full[i]), 1);
      init_barrier(shared_address(&x_full[i]), 1);
      init_barrier(shared_address(&empty[i]), 1);
      places[i] = ~0u;
    }
  }
};

// For everyone but the streaming warp.
class StageRing {
 public:
  __device__ explicit StageRing(RingControl& control) : control_(control) {}

  // The warp whose stage it is: until what was streamed has arrived. Returns its address.
  __device__ std::uint32_t wait(unsigned stage) const {
    const int slot = stage % kRingStages;
    wait_barrier(shared_address(&control_.full[slot]), stage / kRingStages & 1);
    return StagePlace::address(place(slot));
  }
  // Until its activations have, too.
  __device__ std::uint32_t wait_with_x(unsigned stage) const {
    wait_barrier(shared_address(&control_.x_full[stage % kRingStages]), stage / kRingStages & 1);
    return wait(stage);
  }
  // One lane of it, after the others are through.
  __device__ void give_back(unsigned stage) const {
    arrive(shared_address(&control_.empty[stage % kRingStages]));
  }

  // A thread: fills in the activations as soon as the stage has a place.
  __device__ void bring_x(unsigned stage, const void* from, int bytes) const {
    const int slot = stage % kRingStages;
    std::uint32_t where;
    do {
      where = place(slot);
    } while (!StagePlace::is_of(where, stage));
    const std::uint32_t barrier = shared_address(&control_.x_full[slot]);
    arrive_expecting(barrier, bytes);
    copy_bytes_async(StagePlace::address(where), from, bytes, barrier);
  }

 private:
  __device__ std::uint32_t place(int slot) const {
    return *const_cast<const volatile std::uint32_t*>(&control_.places[slot]);
  }

  RingControl& control_;
};

// The streaming warp; all lanes call every function together.
class RingProducer {
 public:
  // The ring's memory: `bytes` at `data`, both multiples of kStageAlignment. max_in_flight: bytes
  // asked for and not there yet. Enough keep memory busy; more only queue, and every small access
  // of the block queues behind them.
  __device__ RingProducer(RingControl& control, std::uint32_t data, int bytes, int max_in_flight)
      : control_(control), data_(data), max_in_flight_(max_in_flight), space_(bytes) {}

  // A stage of room for x_bytes of activations and num_copies pieces: lane i < num_copies asks for
  // piece_bytes at `from` (its own). x_bytes and piece_bytes are multiples of 16.
  __device__ void push(int x_bytes, int num_copies, int piece_bytes, const char* from) {
    const int asked = num_copies * piece_bytes;
    const int size = (x_bytes + asked + kStageAlignment - 1) / kStageAlignment * kStageAlignment;
    while (!space_.has_room(size) || stage_ - oldest_ == kRingStages) reclaim();
    while (in_flight_ > 0 && in_flight_ + asked > max_in_flight_) wait_for_oldest_arrival();
    const int lane = threadIdx.x % kWarp, slot = stage_ % kRingStages;
    if (lane == slot) {
      asked_ = asked;
      taken_ = space_.taken_by(size);
    }
    const std::uint32_t place = data_ + space_.take(size);
    const std::uint32_t barrier = shared_address(&control_.full[slot]);
    if (lane == 0) {
      // Before the copies: who sees that they have arrived may read it.
      *const_cast<volatile std::uint32_t*>(&control_.places[slot]) =
          StagePlace::make(stage_, place);
      if (x_bytes == 0) arrive(shared_address(&control_.x_full[slot]));
      arrive_expecting(barrier, asked);
    }
    __syncwarp();
    if (lane < num_copies) {
      copy_bytes_async(place + x_bytes + lane * piece_bytes, from, piece_bytes, barrier);
    }
    in_flight_ += asked;
    ++stage_;
  }

 private:
  __device__ void wait_for_oldest_arrival() {
    wait_barrier(shared_address(&control_.full[arriving_ % kRingStages]),
                 arriving_ / kRingStages & 1);
    in_flight_ -= __shfl_sync(kFullWarp, asked_, arriving_ % kRingStages);
    ++arriving_;
  }

  __device__ void reclaim() {
    if (arriving_ == oldest_) wait_for_oldest_arrival();
    wait_barrier(shared_address(&control_.empty[oldest_ % kRingStages]), oldest_ / kRingStages & 1);
    space_.give_back(__shfl_sync(kFullWarp, taken_, oldest_ % kRingStages));
    ++oldest_;
  }

  RingControl& control_;
  const std::uint32_t data_;
  const int max_in_flight_;
  RingSpace space_;
  int in_flight_ = 0;
  int asked_ = 0, taken_ = 0;  // bytes of the stage that is this lane's
  unsigned stage_ = 0;
  unsigned oldest_ = 0;    // stage that was not reclaimed yet
  unsigned arriving_ = 0;  // stage that was not seen to have arrived yet
};

}  // namespace gapless
