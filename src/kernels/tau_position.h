// The part of a head's scale that depends on the position (HeadScales), the same on every backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace gapless {

// 1/2 + sigmoid(alpha ln(position + 1)), once rounded: to float32, or to bfloat16. Computed in double, so that
// libraries whose logarithms differ in the last bit agree on the result.
GAPLESS_HOST_DEVICE inline float tau_position(float alpha, std::int32_t position, bool to_bf16) {
  const double exponent = -static_cast<double>(alpha) * log(static_cast<double>(position) + 1.0);
  const auto value = static_cast<float>(0.5 + 1.0 / (1.0 + exp(exponent)));
  if (!to_bf16) return value;
  // The value is finite and positive (a NaN stays one).
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof(rounded));
  return rounded;
}

}  // namespace gapless
