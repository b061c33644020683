// What goes wrong on a simulated device, and when. Everything follows from the script and its seed.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gapless {

// The calls that a script can make fail.
enum class SimCall : std::uint8_t {
  kAllocate,
  kAllocatePinned,
  kCreateStream,
  kCreateEvent,
  kClockOffset,
  kCopyToDevice,
  kCopyToHost,
  kCopyOnDevice,
  kFillBytes,
  kEnqueueKernel,
  kRecord,
  kWait,
  kBeginCapture,
  kEndCapture,
  kLaunch,
  kStreamSynchronize,
  kEventSynchronize,
  kEventIsComplete,
  kAny,  // in a script: whichever call has the number
};

std::string_view sim_call_name(SimCall call);

// 30 years. Whoever waits without a bound sits them out in virtual time, so that a simulation with
// a step that hangs can still be torn down.
inline constexpr std::int64_t kSimHangNs = 1'000'000'000'000'000'000;

struct SimFaultScript {
  // The number-th call of its kind (kAny: of all) returns DeviceError and does nothing. From 1.
  struct FailingCall {
    SimCall call = SimCall::kAny;
    std::int64_t number = 0;
  };
  std::vector<FailingCall> failing_calls;
  // The number-th piece of device work (copy, fill or kernel, in the order of enqueueing; those of
  // a graph count at each launch) fails when it runs, and poisons its stream. From 1.
  std::vector<std::int64_t> failing_ops;
  // These, counted alike, never end: they take kSimHangNs.
  std::vector<std::int64_t> hanging_ops;
  // Each piece of work is slowed down with this probability, by a factor drawn between 1 and
  // max_slowdown.
  double slow_probability = 0;
  double max_slowdown = 1;
  std::uint64_t seed = 0;
};

// Follows a script: numbers the calls and the work.
class SimFaults {
 public:
  explicit SimFaults(SimFaultScript script);

  // Counts one call; the error when the script wants it to fail. `stream` may be empty.
  Status on_call(SimCall call, std::string_view stream);
  // Counts one piece of work; the error when the script wants it to fail.
  Status on_op(std::string_view label, std::string_view stream);
  // The duration that the work last counted takes this time.
  std::int64_t slowed_ns(std::int64_t duration_ns);

  // Counted so far; kAny: all calls.
  std::int64_t num_calls(SimCall call) const { return num_calls_[index(call)]; }
  std::int64_t num_ops() const { return num_ops_; }

 private:
  static std::size_t index(SimCall call) { return static_cast<std::size_t>(call); }
  double next_uniform();

  const SimFaultScript script_;
  std::uint64_t random_state_;
  std::array<std::int64_t, static_cast<std::size_t>(SimCall::kAny) + 1> num_calls_{};
  std::int64_t num_ops_ = 0;
};

}  // namespace gapless
