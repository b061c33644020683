// Conversions between the 16-bit float formats and float32, written so that loops over them
// vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace gapless {

inline float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded);
}

// Exact, denormals included.
inline float f32_from_f16(std::uint16_t bits) {
  // The exponent's bias differs by 112: shift the bits into place and scale by 2^112, which also
  // turns float16's denormals into the right normal numbers. Infinity and NaN need the largest
  // exponent.
  const std::uint32_t magnitude = (bits & 0x7FFFu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x0F800000u ? 0x7F800000u : 0u;
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

// Exact. e4m3: a sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, 0x7F is not a number.
inline float f32_from_e4m3(std::uint8_t bits) {
  // As f32_from_f16: here the bias differs by 120.
  const std::uint32_t magnitude = bits & 0x7Fu;
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  const std::uint32_t sign = (bits & 0x80u) << 24;
  const std::uint32_t number =
      magnitude == 0x7Fu ? 0x7FC00000u : std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>(number | sign);
}

}  // namespace gapless
