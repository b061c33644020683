// The live counters behind Device::counters(). Any thread may add.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/device.h"

namespace gapless {

struct DeviceCounterCells {
  std::atomic<std::int64_t> allocations{0};
  std::atomic<std::int64_t> pageable_copies{0};
  std::atomic<std::int64_t> synchronizations{0};
  std::atomic<std::int64_t> event_waits{0};

  DeviceCounters read() const {
    return {.allocations = allocations.load(std::memory_order_relaxed),
            .pageable_copies = pageable_copies.load(std::memory_order_relaxed),
            .synchronizations = synchronizations.load(std::memory_order_relaxed),
            .event_waits = event_waits.load(std::memory_order_relaxed)};
  }
};

inline void count(std::atomic<std::int64_t>& cell) {
  cell.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace gapless
