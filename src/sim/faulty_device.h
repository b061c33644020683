// A device that fails on demand: wraps a real one, on which everything runs as always until its
// fault strikes. For tests of what the engine and the server make of a device that is lost, on any
// device; SimDevice scripts finer faults in virtual time.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "device/device.h"

namespace gapless {

struct DeviceFault {
  enum class Kind : std::uint8_t {
    kLose,  // the wait fails, and so does every later call
    kHang,  // the wait does not end
  };
  Kind kind = Kind::kLose;
  // Which Event::synchronize_within it strikes, from 1: with LoopOptions::step_timeout_ns the loop
  // makes one for each step.
  std::int64_t wait = 1;
};

// "lose@12" or "hang@12".
StatusOr<DeviceFault> parse_device_fault(std::string_view text);

std::unique_ptr<Device> make_faulty_device(std::unique_ptr<Device> device, DeviceFault fault);

}  // namespace gapless
