// Numbers of 8 bits (e4m3) to and from wider ones: instructions from 8.9 on, before the same
// results from the functions of kernels/fp8.h.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/cuda_path.h"
#include "kernels/fp8.h"

namespace gapless {

using E4m3 = __nv_fp8_e4m3;

// Four e4m3 as two pairs of half precision, which is exact.
__device__ __forceinline__ void halves_from_e4m3(std::uint32_t four, std::uint32_t& low,
                                                 std::uint32_t& high) {
  if constexpr (cuda::kPath.has_fp8) {
    asm("{\n"
        ".reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(four));
  } else {
    const auto widen = [](std::uint32_t spread) {
      const std::uint32_t small = small_halves_from_e4m3(spread);
      std::uint32_t pair;
      asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(small), "r"(kHalvesOf256));
      return pair | not_numbers_of_e4m3(spread);
    };
    low = widen(__byte_perm(four, 0, 0x1404));
    high = widen(__byte_perm(four, 0, 0x3424));
  }
}

// Two numbers as e4m3, the first in the lower byte; larger ones become +-448.
__device__ __forceinline__ std::uint16_t e4m3_from_floats(float low, float high) {
  if constexpr (cuda::kPath.has_fp8) {
    std::uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    return two;
  } else {
    return static_cast<std::uint16_t>(e4m3_from_float(low) | e4m3_from_float(high) << 8);
  }
}

// Two numbers in half precision; what is too large becomes the largest number.
__device__ __forceinline__ std::uint32_t pack_half2(float low, float high) {
  std::uint32_t packed;
  if constexpr (cuda::kPath.has_copy_engine) {
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    constexpr float kLargest = 65504.0f;
    const auto clamped = [](float x) { return x != x ? x : fminf(fmaxf(x, -kLargest), kLargest); };
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(clamped(high)), "f"(clamped(low)));
  }
  return packed;
}

}  // namespace gapless
