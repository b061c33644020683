// What the device did with its time: four states that together are all of it.
//
//   busy       it ran a forward or a sampling
//   preparing  it had nothing to run, but somebody had asked: a request's picture was being
//              decoded, cut or hashed, its text
//              tokenised, or it waited for crop buffers
//   starved    nobody had asked for anything
//   bubble     work was queued and the loop was late; charged to the host phase that was running
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "observe/step_record.h"

namespace gapless {

enum class DeviceActivity : std::uint8_t { kBusy, kPreparing, kStarved, kBubble };
const char* device_activity_name(DeviceActivity state);  // "busy", "preparing", "starved", "bubble"

// A part of a gap between two steps, on the host's clock.
struct IdlePart {
  DeviceActivity state = DeviceActivity::kStarved;  // never kBusy
  HostPhaseKind phase = HostPhaseKind::kOther;      // of a bubble: what the host was doing
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// Nanoseconds in each state.
class DeviceTime {
 public:
  std::int64_t busy_ns() const { return ns_[kBusyAt]; }
  std::int64_t preparing_ns() const { return ns_[kPreparingAt]; }
  std::int64_t starved_ns() const { return ns_[kStarvedAt]; }
  std::int64_t bubble_ns(HostPhaseKind phase) const {
    return ns_[kBubbleAt + static_cast<std::size_t>(phase)];
  }
  std::int64_t bubble_ns() const;
  std::int64_t all_ns() const;

  void add_busy(std::int64_t ns) { ns_[kBusyAt] += ns; }
  void add(const IdlePart& part);
  DeviceTime operator-(const DeviceTime& before) const;

  // Moves on by `elapsed_ns` in all, towards `estimate`, without taking anything back: states that
  // lag behind the estimate share the time in proportion to how far they do. Leaves everything as
  // it is and returns false when none does.
  bool advance_towards(const DeviceTime& estimate, std::int64_t elapsed_ns);

 private:
  static constexpr std::size_t kBusyAt = 0;
  static constexpr std::size_t kPreparingAt = 1;
  static constexpr std::size_t kStarvedAt = 2;
  static constexpr std::size_t kBubbleAt = 3;  // by HostPhaseKind from here on
  std::array<std::int64_t, kBubbleAt + kNumHostPhaseKinds> ns_{};
};

}  // namespace gapless
