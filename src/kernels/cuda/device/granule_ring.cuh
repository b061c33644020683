// A ring of 4 KB granules in shared memory through which one warp streams what never changes during
// a launch (weights, cached keys and values) to the computing warps, far ahead of them.
//
// A stage is 1 to 4 granules that arrive together. Stage s belongs to computing warp
// s % kRingConsumers alone: warps work on different stages at the same time, and each meets every
// phase of the barriers of its own. Producer and consumers count the same sequence of stages.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

inline constexpr int kGranuleBytes = 4096;
inline constexpr int kRingConsumers = 8;  // warps
inline constexpr int kRingStages = 16;    // in flight at most
static_assert(kRingStages % kRingConsumers == 0);
// Granules asked for and not there yet: enough to keep memory busy. More would only queue, and
// every small access of the block queues behind them.
inline constexpr int kRingInFlight = 12;
static_assert(kRingInFlight < kRingStages);

template <int kGranules>
struct GranuleRing {
  // Addresses in shared memory.
  std::uint32_t data;   // kGranules * kGranuleBytes
  std::uint32_t full;   // kRingStages mbarriers
  std::uint32_t empty;  // kRingStages mbarriers

  __device__ void init() const {
    for (int i = 0; i < kRingStages; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, 1);
    }
  }
  // `index` counts on without end.
  __device__ std::uint32_t granule(unsigned index) const {
    return data + index % kGranules * kGranuleBytes;
  }
  // The warp whose stage it is.
  __device__ void wait(unsigned stage) const {
    wait_barrier(full + stage % kRingStages * 8, stage / kRingStages & 1);
  }
  // One lane of it, after the others are through.
  __device__ void give_back(unsigned stage) const { arrive(empty + stage % kRingStages * 8); }
};

// Where a run of stages begins. Both counts wrap around: 2^32 granules are 17 TB.
struct RingPosition {
  unsigned stage = 0;
  unsigned granule = 0;

  __device__ void advance(unsigned stages, unsigned granules_each) {
    stage += stages;
    granule += stages * granules_each;
  }
};

// The producing warp; all lanes call every function together.
template <int kGranules>
class RingProducer {
 public:
  __device__ explicit RingProducer(const GranuleRing<kGranules>& ring) : ring_(ring) {}

  // A stage of `size` granules; lane i < num_copies asks for the i-th piece of it, kPieceBytes at
  // `from` (its own). Pieces lie one behind the other.
  template <int kPieceBytes = kGranuleBytes>
  __device__ void push(int size, int num_copies, const char* from) {
    static_assert(kGranuleBytes % kPieceBytes == 0);
    while (free_ < size || stage_ - oldest_ == kRingStages) reclaim();
    while (in_flight_ + size > kRingInFlight) wait_for_oldest_arrival();
    free_ -= size;
    in_flight_ += size;
    const unsigned slot = stage_ % kRingStages;
    sizes_ = (sizes_ & ~(15ull << (4 * slot))) | static_cast<std::uint64_t>(size) << (4 * slot);
    const std::uint32_t barrier = ring_.full + slot * 8;
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) arrive_expecting(barrier, num_copies * kPieceBytes);
    __syncwarp();
    if (lane < num_copies) {
      constexpr int kPieces = kGranuleBytes / kPieceBytes;
      copy_bytes_async(ring_.granule(granule_ + lane / kPieces) + lane % kPieces * kPieceBytes,
                       from, kPieceBytes, barrier);
    }
    ++stage_;
    granule_ += size;
  }

 private:
  __device__ void wait_for_oldest_arrival() {
    wait_barrier(ring_.full + arriving_ % kRingStages * 8, arriving_ / kRingStages & 1);
    in_flight_ -= size_of(arriving_);
    ++arriving_;
  }

  __device__ void reclaim() {
    wait_barrier(ring_.empty + oldest_ % kRingStages * 8, oldest_ / kRingStages & 1);
    free_ += size_of(oldest_);
    ++oldest_;
  }

  __device__ int size_of(unsigned stage) const {
    return static_cast<int>(sizes_ >> (4 * (stage % kRingStages))) & 15;
  }

  const GranuleRing<kGranules> ring_;
  std::uint64_t sizes_ = 0;  // 4 bits for each of the last kRingStages stages
  int free_ = kGranules;
  unsigned granule_ = 0;
  unsigned stage_ = 0;
  unsigned oldest_ = 0;    // stage that was not reclaimed yet
  unsigned arriving_ = 0;  // stage that was not seen to have arrived yet
  int in_flight_ = 0;
};

}  // namespace gapless
