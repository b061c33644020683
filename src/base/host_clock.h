// The host's clock as an object, so that the engine loop runs unchanged on virtual time.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace gapless {

class HostClock {
 public:
  virtual ~HostClock() = default;
  // Monotonic; its zero is arbitrary.
  virtual std::int64_t now_ns() = 0;
  // Keeps the calling thread busy for so long: the artificial host work of benchmarks and simulations.
  virtual void spend_ns(std::int64_t duration_ns) = 0;
};

// host_now_ns(); spends time by spinning, as real host work would.
class SteadyHostClock : public HostClock {
 public:
  std::int64_t now_ns() override { return host_now_ns(); }
  void spend_ns(std::int64_t duration_ns) override {
    const std::int64_t end_ns = host_now_ns() + duration_ns;
    while (host_now_ns() < end_ns) {
    }
  }
};

}  // namespace gapless
