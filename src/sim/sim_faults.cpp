#include "sim/sim_faults.h"

#include <algorithm>

namespace gapless {

std::string_view sim_call_name(SimCall call) {
  switch (call) {
    case SimCall::kAllocate:
      return "allocate";
    case SimCall::kAllocatePinned:
      return "allocate_pinned";
    case SimCall::kCreateStream:
      return "create_stream";
    case SimCall::kCreateEvent:
      return "create_event";
    case SimCall::kClockOffset:
      return "clock_offset_ns";
    case SimCall::kCopyToDevice:
      return "copy_to_device";
    case SimCall::kCopyToHost:
      return "copy_to_host";
    case SimCall::kCopyOnDevice:
      return "copy_on_device";
    case SimCall::kFillBytes:
      return "fill_bytes";
    case SimCall::kEnqueueKernel:
      return "enqueue_kernel";
    case SimCall::kRecord:
      return "record";
    case SimCall::kWait:
      return "wait";
    case SimCall::kBeginCapture:
      return "begin_capture";
    case SimCall::kEndCapture:
      return "end_capture";
    case SimCall::kLaunch:
      return "launch";
    case SimCall::kStreamSynchronize:
      return "Stream::synchronize";
    case SimCall::kEventSynchronize:
      return "Event::synchronize";
    case SimCall::kEventIsComplete:
      return "is_complete";
    case SimCall::kAny:
      return "any";
  }
  return "?";
}

SimFaults::SimFaults(SimFaultScript script)
    : script_(std::move(script)), random_state_(script_.seed) {}

Status SimFaults::on_call(SimCall call, std::string_view stream) {
  const std::int64_t number = ++num_calls_[index(call)];
  const std::int64_t number_of_all = ++num_calls_[index(SimCall::kAny)];
  for (const SimFaultScript::FailingCall& failing : script_.failing_calls) {
    const bool hit = failing.call == SimCall::kAny
                         ? failing.number == number_of_all
                         : failing.call == call && failing.number == number;
    if (!hit) continue;
    return make_error(StatusCode::kDeviceError, "simulated fault: {} {}, call {}{}{}",
                      sim_call_name(call), number, number_of_all, stream.empty() ? "" : ", stream ",
                      stream);
  }
  return ok_status();
}

Status SimFaults::on_op(std::string_view label, std::string_view stream) {
  ++num_ops_;
  if (std::ranges::find(script_.failing_ops, num_ops_) == script_.failing_ops.end()) {
    return ok_status();
  }
  return make_error(StatusCode::kDeviceError, "simulated fault: op {} ({}), stream {}", num_ops_,
                    label, stream);
}

std::int64_t SimFaults::slowed_ns(std::int64_t duration_ns) {
  if (std::ranges::find(script_.hanging_ops, num_ops_) != script_.hanging_ops.end()) {
    return kSimHangNs;
  }
  if (script_.slow_probability <= 0 || next_uniform() >= script_.slow_probability) {
    return duration_ns;
  }
  const double factor = 1 + next_uniform() * (script_.max_slowdown - 1);
  return static_cast<std::int64_t>(static_cast<double>(duration_ns) * factor);
}

// SplitMix64 (Steele, Lea and Flood, 2014), its upper 53 bits as a number in [0, 1).
double SimFaults::next_uniform() {
  random_state_ += 0x9e3779b97f4a7c15u;
  std::uint64_t z = random_state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

}  // namespace gapless
