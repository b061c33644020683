// A ring of 4 KB granules in shared memory through which one warp streams what never changes during
// a launch (weights, cached keys and values) to the computing warps, far ahead of them.
//
// A stage is 1 to 4 granules that arrive together and are given back together. Producer and
// consumers walk the same sequence of stages, each with its own cursor. Every consuming warp waits
// for every stage and gives it back, also one that it does not use: so nobody misses a phase of a
// barrier.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

inline constexpr int kGranuleBytes = 4096;
inline constexpr int kRingStages = 16;  // in flight at most
inline constexpr int kRingConsumers = 8;  // warps

// Addresses in shared memory.
struct GranuleRing {
  std::uint32_t data;   // num_granules * kGranuleBytes
  std::uint32_t full;   // kRingStages mbarriers
  std::uint32_t empty;  // kRingStages mbarriers
  int num_granules;

  __device__ void init() const {
    for (int i = 0; i < kRingStages; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, kRingConsumers);
    }
  }
  __device__ std::uint32_t granule(int index) const {
    const int wrapped = index >= num_granules ? index - num_granules : index;
    return data + wrapped * kGranuleBytes;
  }
};

// Where a consumer stands.
struct RingCursor {
  int stage = 0;
  int granule = 0;

  __device__ void wait(const GranuleRing& ring, int ahead = 0) const {
    const int s = stage + ahead;
    wait_barrier(ring.full + s % kRingStages * 8, s / kRingStages & 1);
  }
  // One lane of each consuming warp, after the others are through.
  __device__ void give_back(const GranuleRing& ring, int ahead = 0) const {
    arrive(ring.empty + (stage + ahead) % kRingStages * 8);
  }
  __device__ void advance(const GranuleRing& ring, int granules, int stages = 1) {
    stage += stages;
    granule += granules;
    if (granule >= ring.num_granules) granule -= ring.num_granules;
  }
};

// The producing warp; all lanes call every function together.
class RingProducer {
 public:
  __device__ explicit RingProducer(const GranuleRing& ring) : ring_(ring), free_(ring.num_granules) {}

  // Lane i < num_granules asks for the granule at `from` (its own).
  __device__ void push(int num_granules, const char* from) {
    while (free_ < num_granules || stage_ - oldest_ == kRingStages) reclaim();
    free_ -= num_granules;
    const int slot = stage_ % kRingStages;
    sizes_ = (sizes_ & ~(15ull << (4 * slot))) |
             static_cast<std::uint64_t>(num_granules) << (4 * slot);
    const std::uint32_t barrier = ring_.full + slot * 8;
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) arrive_expecting(barrier, num_granules * kGranuleBytes);
    __syncwarp();
    if (lane < num_granules) {
      copy_bytes_async(ring_.granule(granule_ + lane), from, kGranuleBytes, barrier);
    }
    ++stage_;
    granule_ += num_granules;
    if (granule_ >= ring_.num_granules) granule_ -= ring_.num_granules;
  }

 private:
  __device__ void reclaim() {
    const int slot = oldest_ % kRingStages;
    wait_barrier(ring_.empty + slot * 8, oldest_ / kRingStages & 1);
    free_ += static_cast<int>(sizes_ >> (4 * slot)) & 15;
    ++oldest_;
  }

  const GranuleRing ring_;
  std::uint64_t sizes_ = 0;  // 4 bits for each stage in flight
  int free_;
  int granule_ = 0;
  int stage_ = 0;
  int oldest_ = 0;  // stage that was not reclaimed yet
};

}  // namespace gapless
