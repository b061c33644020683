// A ring in shared memory through which one warp streams what never changes during a launch
// (weights, cached keys and values) to the computing warps, far ahead of them.
//
// A stage is what one computing warp works on at a time: stage s belongs to warp s % kRingConsumers
// alone, so warps work on different stages at the same time, and each meets every phase of the
// barriers of its own. Or several warps work on it together (warpgroup_product.cuh), who then have
// to know that the stages before it are used up. A stage lies in one piece. It may begin with room for activations, which
// another warp fills in when they are there. All who use the ring count the same stages.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/stage_copies.cuh"
#include "kernels/cuda/ring_space.h"

namespace gapless {

inline constexpr int kRingConsumers = 8;  // warps
static_assert(kRingStages == kWarp, "each slot has a lane of the streaming warp");
static_assert(kRingStages % kRingConsumers == 0);

// The tool racecheck follows barriers at which threads arrive and wait themselves; not what
// __syncwarp hands on to one lane that does it for its warp, nor who looks and does not wait. So
// for it all do.
#ifdef GAPLESS_RACECHECK
inline constexpr bool kForRacecheck = true;
#else
inline constexpr bool kForRacecheck = false;
#endif

// In shared memory. With a copy engine the base is empty. (As an empty member with [[no_unique_address]] it moved what lies behind this
// struct on the device, by as much again as the struct takes, and the host did not reckon with that.)
struct RingControl : CopyRequests<kHasCopyEngine> {
  std::uint64_t full[kRingStages];    // mbarriers: what was streamed has arrived
  std::uint64_t x_full[kRingStages];  // the activations have, or there are none
  std::uint64_t empty[kRingStages];   // used up
  // A stage with room for activations has a place. These stages alone have turns here: who brings
  // activations waits for each of them, and for no other.
  std::uint64_t x_placed[kRingStages];
  std::uint32_t places[kRingStages];  // address of the latest stage in a slot

  // `sharers`: warps that may work on a stage together.
  __device__ void init(int sharers) {
    for (auto* barriers : {&full, &x_full, &empty, &x_placed}) {
      const int arrivals = barriers != &empty ? 1 : sharers * (kForRacecheck ? kWarp : 1);
      for (std::uint64_t& barrier : *barriers) init_barrier(shared_address(&barrier), arrivals);
    }
    init_requests();
  }
};

// For everyone but the streaming warp.
class StageRing {
 public:
  __device__ StageRing(RingControl& control, int sharers) : control_(control), sharers_(sharers) {}

  // The warp whose stage it is: until what was streamed has arrived. Returns its address.
  __device__ std::uint32_t wait(unsigned stage) const {
    const int slot = stage % kRingStages;
    wait_barrier(shared_address(&control_.full[slot]), phase_parity(stage));
    return control_.places[slot];
  }
  // Until its activations have, too.
  __device__ std::uint32_t wait_with_x(unsigned stage) const {
    wait_barrier(shared_address(&control_.x_full[stage % kRingStages]), phase_parity(stage));
    return wait(stage);
  }
  // Where a stage is that has arrived and was not given back.
  __device__ std::uint32_t place(unsigned stage) const {
    return control_.places[stage % kRingStages];
  }
  // It is through with the stage, which is its own.
  __device__ void give_back(unsigned stage) const { give_back(stage, sharers_); }
  // It is one of those who work on the stage together, and through with it.
  __device__ void give_back_share(unsigned stage) const { give_back(stage, 1); }

  // kCopyingLanes of a warp: they fill in the activations as soon as the stage has a place. It is
  // the x_stage-th with room for them.
  __device__ void bring_x(unsigned stage, unsigned x_stage, const void* from, int bytes) const {
    const int slot = stage % kRingStages;
    const std::uint32_t placed = shared_address(&control_.x_placed[x_stage % kRingStages]);
    // Who waits may sleep a little longer than that, and the stage's warp waits for this thread.
    while (!barrier_is_past(placed, phase_parity(x_stage))) {
    }
    if (kForRacecheck) wait_barrier(placed, phase_parity(x_stage));
    const std::uint32_t barrier = shared_address(&control_.x_full[slot]);
    expect_copies(barrier, bytes);
    copy_bytes_async(control_.places[slot], from, bytes, barrier);
    complete_copies(barrier);
  }

 private:
  __device__ void give_back(unsigned stage, int arrivals) const {
    __syncwarp();
    if (kForRacecheck || threadIdx.x % kWarp == 0) {
      arrive(shared_address(&control_.empty[stage % kRingStages]), arrivals);
    }
  }

  RingControl& control_;
  const int sharers_;
};

// What stages of one kind are like; bytes are multiples of 16.
struct StageKind {
  int x_bytes;      // room for activations
  int streamed;     // bytes behind them, up to which a stage's pieces fill it
  int piece_bytes;  // of a copy
  // Stages asked for and not there yet, at most. Enough keep memory busy; more only queue, and
  // every small access of the block queues behind them.
  int max_in_flight;
};

// The streaming warp; all lanes call every function together.
//
// A stage must not cost it much: it is one warp, most of what it does waits for what it did before,
// and it has 850 cycles for a stage of 16 KB. So lanes do in one go what is to be done for several
// stages, and look at the barriers of several at once: lane i at that of the latest stage in slot
// i.
class RingProducer {
 public:
  // The ring's memory: `bytes` at `data`, both multiples of kStageAlignment.
  __device__ RingProducer(RingControl& control, std::uint32_t data, int bytes)
      : control_(control), data_(data), space_(bytes) {}

  // The next `count` stages, up to kWarp / kPieces. Lanes kPieces * i and up ask for the i-th
  // stage's pieces, each at its own `from` (nullptr: there is none). `asked`: bytes of those
  // together; the stage's first lane knows.
  template <int kPieces>
  __device__ void push(const StageKind& kind, int count, int asked, const char* from) {
    const int lane = threadIdx.x % kWarp;
    const int size =
        (kind.x_bytes + kind.streamed + kStageAlignment - 1) / kStageAlignment * kStageAlignment;
    for (int done = 0; done < count;) {
      int num_before_end = 0;
      const int ready = wait_for_room(count - done, kind.max_in_flight, size, num_before_end);
      __syncwarp();  // what other lanes saw used up is so for this one, too
      const int k = lane / kPieces - done;
      const bool is_ready = 0 <= k && k < ready;
      const unsigned stage = stage_ + k;
      const std::uint32_t place = data_ + space_.at(k, size, num_before_end);
      const std::uint32_t barrier = shared_address(&control_.full[stage % kRingStages]);
      if (is_ready && lane % kPieces == 0) {
        // Before the copies: who sees that they have arrived may read it.
        control_.places[stage % kRingStages] = place;
        arrive(shared_address(kind.x_bytes == 0
                                  ? &control_.x_full[stage % kRingStages]
                                  : &control_.x_placed[(x_stage_ + k) % kRingStages]));
        expect_copies(barrier, asked);
      }
      __syncwarp();
      const std::uint32_t first_piece = place + kind.x_bytes;
      if constexpr (!kHasCopyEngine) {
        control_.template ask<kPieces>(is_ready, stage, first_piece, from, kind.piece_bytes);
      } else if (is_ready && from != nullptr) {
        copy_bytes_async<Reading::kOnce>(first_piece + lane % kPieces * kind.piece_bytes, from,
                                         kind.piece_bytes, barrier);
      }
      const int own = static_cast<int>((lane - stage_) % kRingStages);
      if (own < ready) end_ = space_.end(own, size, num_before_end);
      space_.take(ready, size, num_before_end);
      stage_ += ready;
      if (kind.x_bytes != 0) x_stage_ += ready;
      done += ready;
    }
  }

  // Behind the last stage: so many copying warps may leave.
  __device__ void end(int copying_warps) {
    if constexpr (!kHasCopyEngine) {
      for (int i = 0; i < copying_warps; ++i, ++stage_) {
        // The slot's request has been read.
        while (stage_ - oldest_ >= kRingStages) oldest_ = wait_for_stages(control_.empty, oldest_);
        control_.end_requests(stage_);
      }
    }
  }

 private:
  // Waits until at least one of the next `count` stages may be asked for; returns how many may.
  __device__ int wait_for_room(int count, int max_in_flight, int size, int& num_before_end) {
    const int lane = threadIdx.x % kWarp;
    num_before_end = __popc(__ballot_sync(kFullWarp, space_.is_before_end(lane, size)));
    const unsigned end = space_.end(lane, size, num_before_end);
    while (true) {
      const bool has_room =
          stage_ + lane - oldest_ < kRingStages && space_.has_room(end, given_back_);
      const bool may_fly = static_cast<int>(stage_ + lane - arriving_) < max_in_flight;
      const unsigned rooms = __ballot_sync(kFullWarp, has_room);
      const unsigned ready = __ballot_sync(kFullWarp, lane < count && has_room && may_fly);
      if (ready != 0) return __popc(ready);
      if ((rooms & 1) == 0) {
        oldest_ = wait_for_stages(control_.empty, oldest_);
        given_back_ = __shfl_sync(kFullWarp, end_, (oldest_ - 1) % kRingStages);
        arriving_ = max(arriving_, oldest_);
      } else {
        arriving_ = wait_for_stages(control_.full, arriving_);
      }
    }
  }

  // Waits for a stage's barrier; returns the first one behind it that would have to be waited for.
  __device__ unsigned wait_for_stages(std::uint64_t* barriers, unsigned stage) const {
    const int lane = threadIdx.x % kWarp;
    wait_barrier(shared_address(&barriers[stage % kRingStages]), phase_parity(stage));
    ++stage;
    const unsigned latest = latest_in_slot(lane, stage_);
    // Barriers are looked at one after the other, so only at those that may have changed.
    const bool is_past = latest - stage < stage_ - stage &&
                         barrier_is_past(shared_address(&barriers[lane]), phase_parity(latest));
    const unsigned end = stage + stages_in_turn(__ballot_sync(kFullWarp, is_past), stage, stage_);
    if (kForRacecheck) {
      for (; stage != end; ++stage) {
        wait_barrier(shared_address(&barriers[stage % kRingStages]), phase_parity(stage));
      }
    }
    return end;
  }

  RingControl& control_;
  const std::uint32_t data_;
  RingSpace space_;
  unsigned end_ = 0;         // position behind the latest stage in this lane's slot
  unsigned given_back_ = 0;  // position up to which stages are used up
  unsigned stage_ = 0;
  unsigned x_stage_ = 0;   // those with room for activations
  unsigned oldest_ = 0;    // stage that is not known to be used up
  unsigned arriving_ = 0;  // stage that is not known to have arrived
};

}  // namespace gapless
