// The host's time as the engine loop sees it: the real clock, or the simulator's virtual one.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "base/clock.h"

namespace gapless {

class HostClock {
 public:
  virtual ~HostClock() = default;
  // Nanoseconds of a monotonic clock.
  virtual std::int64_t now_ns() = 0;
  // The host is busy for this long: spins on the real clock, moves a virtual one on.
  virtual void spend_ns(std::int64_t duration_ns) = 0;
  // The host sleeps until then; it may wake later. Nothing when that is past.
  virtual void sleep_until_ns(std::int64_t time_ns) = 0;
};

class RealHostClock : public HostClock {
 public:
  std::int64_t now_ns() override { return host_now_ns(); }
  void spend_ns(std::int64_t duration_ns) override {
    const std::int64_t end = host_now_ns() + duration_ns;
    while (host_now_ns() < end) {
    }
  }
  void sleep_until_ns(std::int64_t time_ns) override {
    std::this_thread::sleep_until(
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time_ns)));
  }
};

}  // namespace gapless
