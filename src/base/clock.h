// Host time in nanoseconds of a monotonic clock; its zero is arbitrary.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace gapless {

inline std::int64_t host_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Processor time that the calling thread has used: what it spent awake.
inline std::int64_t thread_awake_ns() {
  timespec time{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace gapless
