// A device that gives only so much of its memory away.
#pragma once

#include <cstddef>
#include <memory>

#include "device/device.h"

namespace gapless {

// max_bytes: of all buffers at a time; one more is refused as if the device were full, and info() tells what is
// left of both. Host memory does not count. Streams and events are the device's own.
std::unique_ptr<Device> limit_device_memory(std::unique_ptr<Device> device, std::size_t max_bytes);

}  // namespace gapless
