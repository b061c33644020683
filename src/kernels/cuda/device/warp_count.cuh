// A number that a warp counts, all lanes together, once in a while. Where registers are not exchanged it lies in shared memory, because
// what a thread keeps for want of registers in its own memory is far away after every wait for another block.
#pragma once

#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/register_exchange.cuh"

namespace gapless {

// In shared memory, so many of each of so many warps.
template <int kWarps, int kCounts, bool kInMemory = !kHasRegisterExchange>
struct WarpCounts {
  volatile int counts[kWarps][kCounts];

  template <int kIndex>
  class Count {
   public:
    __device__ explicit Count(WarpCounts& all) : all_(all) {}
    __device__ __forceinline__ int get() const {
      return all_.counts[afresh(threadIdx.x) / kWarp][kIndex];
    }
    __device__ __forceinline__ void set(int value) {
      __syncwarp();  // all lanes have read what was there
      if (threadIdx.x % kWarp == 0) all_.counts[afresh(threadIdx.x) / kWarp][kIndex] = value;
      __syncwarp();
    }

   private:
    WarpCounts& all_;
  };
};

template <int kWarps, int kCounts>
struct WarpCounts<kWarps, kCounts, false> {
  template <int kIndex>
  class Count {
   public:
    __device__ explicit Count(WarpCounts& /*all*/) {}
    __device__ __forceinline__ int get() const { return value_; }
    __device__ __forceinline__ void set(int value) { value_ = value; }

   private:
    int value_ = 0;
  };
};

}  // namespace gapless
