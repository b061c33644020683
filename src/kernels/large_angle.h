// A large angle less its whole turns. The angle times 1 / (2 pi) is a number of turns: of 2^100 radians the first hundred bits of
// 1 / (2 pi) make whole ones, and the bits behind them say where on the circle the angle lies.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace gapless {

// From here on cosf and sinf of CUDA's library take turns off with an array in a thread's memory.
inline constexpr float kLargeAngle = 105615.0f;

// angle + quarters * pi / 2, angle at most pi / 4 from zero.
struct QuarteredAngle {
  float angle;
  int quarters;  // 0 to 3
};

// `z` is a number in bfloat16, from kLargeAngle on or below minus that, or no number: its angle is none, too.
GAPLESS_HOST_DEVICE inline QuarteredAngle quartered(float z) {
  std::uint32_t bits;
  std::memcpy(&bits, &z, sizeof(bits));
  const std::uint32_t exponent = bits >> 23 & 0xff;
  if (exponent == 0xff) return {z - z, 0};
  // |z| = significand * 2^shift, shift from 9 to 120. What `significand` is multiplied by: turns in 2^shift without the whole ones,
  // in 2^-64.
  const std::uint64_t significand = 0x80 | (bits >> 16 & 0x7f);
  const std::uint32_t shift = exponent - 134;
  constexpr std::uint64_t kFirst = 0x28be60db9391054a, kSecond = 0x7f09d5f47d4d3770,
                          kThird = 0x36d8a5664f10e410;  // of 1 / (2 pi)
  const std::uint64_t high = shift < 64 ? kFirst : kSecond, low = shift < 64 ? kSecond : kThird;
  const std::uint32_t in_word = shift % 64;
  const std::uint64_t turns_of_power = high << in_word | (in_word == 0 ? 0 : low >> (64 - in_word));
  std::uint64_t turns = significand * turns_of_power;
  if (bits >> 31 != 0) turns = 0 - turns;
  const std::uint64_t quarters = (turns + (std::uint64_t{1} << 61)) >> 62;
  const auto rest = static_cast<std::int64_t>(turns - (quarters << 62));
  constexpr double kRadians = 6.283185307179586 / 18446744073709551616.0;  // 2 pi / 2^64
  return {static_cast<float>(static_cast<double>(rest) * kRadians), static_cast<int>(quarters)};
}

// Of `angle + quarters * pi / 2`, given those of the angle.
struct CosineAndSine {
  float cosine, sine;

  GAPLESS_HOST_DEVICE CosineAndSine turned(int quarters) const {
    const float first = quarters % 2 == 0 ? cosine : sine;
    const float second = quarters % 2 == 0 ? sine : cosine;
    return {quarters == 1 || quarters == 2 ? -first : first, quarters >= 2 ? -second : second};
  }
};

}  // namespace gapless
