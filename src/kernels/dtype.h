// Element types of tensors in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gapless {

enum class DType : std::uint8_t { kF32, kBF16 };

constexpr std::size_t dtype_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

// Upper half of a float32, rounded to nearest even; NaN stays NaN.
inline std::uint16_t f32_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float bf16_to_f32(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// `value` as it would be after a trip through a tensor of this type.
inline float round_to(DType dtype, float value) {
  return dtype == DType::kF32 ? value : bf16_to_f32(f32_to_bf16(value));
}

}  // namespace gapless
