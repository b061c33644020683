// The element type T of the CPU backend's tensors: float, or Bf16. Arithmetic is float32 for both.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace gapless::cpu {

struct Bf16 {
  std::uint16_t bits;
};

template <typename T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<Bf16> = DType::kBF16;

inline float to_float(float value) {
  return value;
}
inline float to_float(Bf16 value) {
  return bf16_to_f32(value.bits);
}

// `value` rounded to T.
template <typename T>
T rounded(float value) {
  if constexpr (kDTypeOf<T> == DType::kBF16) {
    return {f32_to_bf16(value)};
  } else {
    return value;
  }
}

// Calls function<T>() for the element type that `dtype` names.
template <typename Function>
decltype(auto) with_element(DType dtype, const Function& function) {
  if (dtype == DType::kBF16) return function.template operator()<Bf16>();
  return function.template operator()<float>();
}

}  // namespace gapless::cpu
