// Host time in nanoseconds of a monotonic clock; its zero is arbitrary.
#pragma once

#include <chrono>
#include <cstdint>

namespace gapless {

inline std::int64_t host_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace gapless
