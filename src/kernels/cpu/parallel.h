// How the CPU's ops cut their work into tasks.
#pragma once

#include <cstdint>

namespace gapless::cpu {

// Below this many multiplications a loop costs less than waking a thread.
inline constexpr std::int64_t kMinParallelProducts = 200'000;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace gapless::cpu
