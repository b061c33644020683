// How a block of decoder_kernel.cuh tells the others what it has written: by one thread, value after value in the order of the
// schedule, when its computing warps have arrived at the value's barrier.
#pragma once

#include <utility>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/grid_counters.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// The signal warp: one thread.

template <typename S, int kRows>
class Signalling {
  using AllPhases = std::make_integer_sequence<int, ScheduleOf<S>::kNumPhases>;

 public:
  __device__ explicit Signalling(const DecoderBlockState<S>& block) : block_(block) {}

  __device__ void run() {
    constexpr Phase kFirst = S::kSchedule.first;
    pass_on<kFirst.writes>(-1);
    for (int l = 0; l < block_.p.num_layers; ++l) pass_on_layer(l, AllPhases());
  }

 private:
  template <int... kIndices>
  __device__ void pass_on_layer(int l, std::integer_sequence<int, kIndices...> /*phases*/) {
    (pass_on<S::kSchedule.layer[kIndices].writes>(l), ...);
  }
  template <Value kValue>
  __device__ __forceinline__ void pass_on(int l) {
    if (!block_.template counts<kValue, kXFromMemory<kRows>>(l)) return;
    const int turn = ScheduleOf<S>::turn_written(kValue, l);
    wait_barrier(block_.written(kValue), turn & 1);
    signal(block_.counter(kValue));
  }

  const DecoderBlockState<S>& block_;
};

// Values in the order in which a layer's phases write them, four bits each from the lowest on.
template <typename S>
constexpr std::uint64_t order_of_values() {
  static_assert(kNumValues <= 16 && kMaxLayerPhases <= 16);
  std::uint64_t order = 0;
  for (int i = ScheduleOf<S>::kNumPhases - 1; i >= 0; --i) {
    const Value value = S::kSchedule.layer[i].writes;
    if (value != Value::kNone) order = order << 4 | static_cast<unsigned>(value);
  }
  return order;
}
template <typename S>
constexpr int values_of_layer() {
  int count = 0;
  for (int i = 0; i < ScheduleOf<S>::kNumPhases; ++i) {
    count += S::kSchedule.layer[i].writes != Value::kNone;
  }
  return count;
}

// The same for a warp that has other things to do (kXWarpSignals): while it waits for something it looks whether there is
// anything to signal. All lanes call these functions; the first one signals.
//
// Which value is next it looks up: unrolled as above this would be a lot of code in each place where the warp waits, and the
// compiler would keep in memory what the warp counts.
template <typename S, int kRows, bool kSignals = kXWarpSignals<kRows>>
class XWarpSignals {
  using Of = ScheduleOf<S>;
  using AllPhases = std::make_integer_sequence<int, Of::kNumPhases>;
  static constexpr Value kFirst = S::kSchedule.first.writes;
  static constexpr std::uint64_t kOrder = order_of_values<S>();
  static constexpr int kValuesOfLayer = values_of_layer<S>();

 public:
  __device__ explicit XWarpSignals(const DecoderBlockState<S>& block) : block_(block) {
    counted_ = values_counted(AllPhases());
    if (threadIdx.x % kWarp != 0) layer_ = block.p.num_layers;
  }

  // Signals what is written, and does not wait for what is not.
  __device__ __forceinline__ void poll() {
    while (layer_ < block_.p.num_layers) {
      const Value value =
          layer_ < 0 ? kFirst : static_cast<Value>(kOrder >> 4 * at_ & 15);
      const int turn = Of::turn_written(value, layer_);
      if (Of::in(counted_, value) && Of::template counted<kXFromMemory<kRows>>(value, turn) &&
          block_.leaves(value, layer_)) {
        if (!barrier_is_past(block_.written(value), turn & 1)) return;
        signal(block_.counter(value));
      }
      if (layer_ < 0 || ++at_ == kValuesOfLayer) {
        at_ = 0;
        ++layer_;
      }
    }
  }
  // What is left, as it comes.
  __device__ void finish() {
    while (layer_ < block_.p.num_layers) poll();
  }

 private:
  // That this block counts at all.
  template <int... kIndices>
  __device__ unsigned values_counted(std::integer_sequence<int, kIndices...> /*phases*/) const {
    return (value_counted<S::kSchedule.layer[kIndices].writes>() | ...);
  }
  template <Value kValue>
  __device__ unsigned value_counted() const {
    return block_.work.template counts<S, kValue>(block_.p.num_rows) ? value_bit(kValue) : 0;
  }

  const DecoderBlockState<S>& block_;
  unsigned counted_;
  int layer_ = -1, at_ = 0;  // of the next value; layer num_layers: there is none
};

template <typename S, int kRows>
class XWarpSignals<S, kRows, false> {
 public:
  __device__ explicit XWarpSignals(const DecoderBlockState<S>& /*block*/) {}
  __device__ void poll() {}
  __device__ void finish() {}
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
