// A device without memory or work: what would be allocated on it is counted. Starting a model and its loop on
// it tells what they take, exactly, on a machine that has no such device.
#pragma once

#include <cstddef>
#include <memory>

#include "device/device.h"

namespace gapless {

class DryDevice : public Device {
 public:
  // Of all buffers that are there now; host memory does not count.
  virtual std::size_t allocated_bytes() const = 0;
};

// `info`: what it passes for. An allocation beyond free_memory_bytes is refused as the device would. Its addresses
// differ from each other and lead nowhere; its streams and events are done at once.
std::unique_ptr<DryDevice> make_dry_device(DeviceInfo info);

}  // namespace gapless
