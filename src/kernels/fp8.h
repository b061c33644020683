// The 8-bit floating point of weights and caches: e4m3 (4 bits of exponent, 3 of mantissa; largest
// value 448, smallest 2^-9, no infinity), the same on every backend.
//
// A row of weights has one scale, a power of two. So a value of the row, scale times e4m3, is exact
// in bfloat16 and float32 too: products that read the row as 8-bit numbers and products that read
// it as T work on the same weights. A finer scale would gain nothing, since the relative spacing of
// floating-point numbers does not depend on it.
#pragma once

#include <cmath>

#include "base/host_device.h"

namespace gapless {

inline constexpr float kFp8Max = 448.0f;
// Rows with larger values than 448 * 2^7 saturate: above, 8-bit numbers would not become bfloat16 by
// one multiplication (cuda/device/fp8_tile.cuh), and no model has such weights.
inline constexpr int kFp8MaxRowExponent = 7;

// The smallest e for which max_value <= kFp8Max * 2^e, at most kFp8MaxRowExponent; 0 for a row of
// zeros. max_value is finite and not negative.
GAPLESS_HOST_DEVICE inline int fp8_row_exponent(float max_value) {
  if (!(max_value > 0)) return 0;
  int exponent = 0;
  const float mantissa = frexpf(max_value, &exponent);  // in [0.5, 1)
  // 448 = 0.875 * 2^9
  const int smallest = mantissa <= 0.875f ? exponent - 9 : exponent - 8;
  return smallest < kFp8MaxRowExponent ? smallest : kFp8MaxRowExponent;
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

}  // namespace gapless
