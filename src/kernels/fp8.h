// The 8-bit floating point of weights and caches: e4m3 (4 bits of exponent, 3 of mantissa; largest
// value 448, smallest 2^-9, no infinity), the same on every backend.
//
// A row of weights has one scale, a power of two. So a value of the row, scale times e4m3, is exact
// in bfloat16 and float32 too: products that read the row as 8-bit numbers and products that read
// it as T work on the same weights. A finer scale would gain nothing, since the relative spacing of
// floating-point numbers does not depend on it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace gapless {

inline constexpr float kFp8Max = 448.0f;
// Rows of weights with larger values than 448 * 2^7 saturate: a row's exponent has to fit a byte
// (cuda/device/fp8_tile.cuh), and no model has such weights.
inline constexpr int kFp8MaxRowExponent = 7;

// The smallest e for which max_value <= kFp8Max * 2^e; 0 for a row of zeros. max_value is finite
// and not negative.
GAPLESS_HOST_DEVICE inline int fp8_exponent(float max_value) {
  if (!(max_value > 0)) return 0;
  int exponent = 0;
  const float mantissa = frexpf(max_value, &exponent);  // in [0.5, 1)
  // 448 = 0.875 * 2^9
  return mantissa <= 0.875f ? exponent - 9 : exponent - 8;
}

// Of a row of weights.
GAPLESS_HOST_DEVICE inline int fp8_row_exponent(float max_value) {
  const int exponent = fp8_exponent(max_value);
  return exponent < kFp8MaxRowExponent ? exponent : kFp8MaxRowExponent;
}

// Of a row of activations: 2^e and 2^-e are normal float32 numbers too. Rows of numbers below
// 2^-111 lose digits.
GAPLESS_HOST_DEVICE inline int fp8_activation_exponent(float max_value) {
  const int exponent = fp8_exponent(max_value);
  return exponent < -120 ? -120 : exponent;
}

// The nearest e4m3 number, ties to even; larger values become +-448.
GAPLESS_HOST_DEVICE inline float round_to_e4m3(float value) {
  const float magnitude = fabsf(value);
  if (!(magnitude < kFp8Max)) return magnitude >= kFp8Max ? copysignf(kFp8Max, value) : value;
  int exponent = 0;
  frexpf(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
  // 3 bits behind the leading one; below 2^-6 the spacing stays 2^-9.
  const int spacing = exponent - 4 < -9 ? -9 : exponent - 4;
  return copysignf(ldexpf(rintf(ldexpf(magnitude, -spacing)), spacing), value);
}

// The byte of round_to_e4m3(value): sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f is not a
// number. Without branches, so that loops of it become vector instructions; always inlined, because
// files that are compiled for different instruction sets use it.
[[gnu::always_inline]] GAPLESS_HOST_DEVICE inline std::uint8_t e4m3_from_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const std::uint32_t sign = bits >> 31 << 7;
  bits &= 0x7fffffffu;
  const bool is_number = bits <= 0x7f800000u;
  const std::uint32_t largest = 0x43e00000u;  // 448
  bits = bits < largest ? bits : largest;
  // Normal: to 3 bits of mantissa, ties to even, and the exponent's bias from 127 to 7.
  const std::uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
  // Below 2^-6: in units of 2^-9, which is what the last bit of numbers from 2^14 on is worth.
  float magnitude, shifted;
  std::memcpy(&magnitude, &bits, sizeof(bits));
  shifted = magnitude + 16384.0f;
  std::uint32_t small;
  std::memcpy(&small, &shifted, sizeof(small));
  small -= 0x46800000u;                                            // 2^14
  const std::uint32_t code = bits < 0x3c800000u ? small : normal;  // below 2^-6
  return static_cast<std::uint8_t>(sign | (is_number ? code : 0x7fu));
}

[[gnu::always_inline]] GAPLESS_HOST_DEVICE inline float float_from_e4m3(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  // As a float's exponent and mantissa it is 2^120 times too small.
  const std::uint32_t bits = magnitude << 20;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  value *= 0x1p120f;
  std::uint32_t result;
  std::memcpy(&result, &value, sizeof(result));
  if (magnitude == 0x7fu) result = 0x7fc00000u;
  result |= std::uint32_t{code & 0x80u} << 24;
  std::memcpy(&value, &result, sizeof(value));
  return value;
}

// ---- Two e4m3 at a time as two numbers of half precision, for GPUs that have no instruction for
// it. `spread`: the bytes 1 and 3 hold the numbers, the others are zeros.

// As a half's exponent and mantissa an e4m3 is 2^8 times too small; a product with this is exact.
inline constexpr std::uint32_t kHalvesOf256 = 0x5c005c00u;
GAPLESS_HOST_DEVICE inline std::uint32_t small_halves_from_e4m3(std::uint32_t spread) {
  return (spread & 0x80008000u) | (spread & 0x7f007f00u) >> 1;
}
// All ones but the sign where there is no number, zeros elsewhere.
GAPLESS_HOST_DEVICE inline std::uint32_t not_numbers_of_e4m3(std::uint32_t spread) {
  const std::uint32_t ones = ((spread & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
  return ones - (ones >> 15);
}

}  // namespace gapless
