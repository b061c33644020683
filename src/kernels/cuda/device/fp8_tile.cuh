// 8-bit weights to bfloat16, in registers.
//
// An e4m3 number's bits, moved to where a bfloat16 has its sign, the low bits of its exponent and
// the high bits of its mantissa, are a bfloat16 2^120 times too small (numbers without a leading
// one included: they become bfloat16 numbers without one). A product with 2^(120 + exponent of the
// row) is exact, so the multiplication gets the same operands as from bfloat16 weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/math.cuh"
#include "kernels/fp8.h"

namespace gapless {

inline constexpr int kFp8Shift = 120;  // a power of two

// The exponent of 2^(kFp8Shift + row_exponent) as a bfloat16's bits have it. It exists for all
// weights that bfloat16 has: kFp8MaxRowExponent bounds it from above.
__device__ __forceinline__ std::uint8_t fp8_scale_byte(int row_exponent) {
  static_assert(127 + kFp8Shift + kFp8MaxRowExponent == 254);
  return static_cast<std::uint8_t>(127 + kFp8Shift + row_exponent);
}

// Two bfloat16 of that exponent.
__device__ __forceinline__ std::uint32_t fp8_scale(std::uint8_t byte) {
  return std::uint32_t{byte} * 0x00800080u;
}

__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// The odd bytes of `packed`, or (kShift = 8) the even ones.
template <int kShift>
__device__ __forceinline__ std::uint32_t e4m3_to_bf16x2(std::uint32_t packed, std::uint32_t scale) {
  const std::uint32_t magnitudes = kShift == 8 ? packed << 4 : packed >> 4;
  const std::uint32_t signs = packed << kShift;
  return multiply_bf16x2((signs & 0x80008000u) | (magnitudes & 0x07f007f0u), scale);
}

// An A fragment from its 8 bytes. `scales`: of rows lane / 4 and lane / 4 + 8.
__device__ __forceinline__ void unpack_fp8_fragment(std::uint32_t low, std::uint32_t high,
                                                    const std::uint32_t (&scales)[2],
                                                    std::uint32_t (&fragment)[4]) {
  fragment[0] = e4m3_to_bf16x2<0>(low, scales[0]);
  fragment[1] = e4m3_to_bf16x2<8>(low, scales[1]);
  fragment[2] = e4m3_to_bf16x2<0>(high, scales[0]);
  fragment[3] = e4m3_to_bf16x2<8>(high, scales[1]);
}

}  // namespace gapless
