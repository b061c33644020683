// Eight bfloat16-sized values to eight e4m3 bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/fp8_conversion.cuh"
#include "kernels/fp8.h"

namespace gapless {

// A row's scale and its inverse, powers of two both.
struct Fp8Scale {
  float scale, inverse;

  __device__ __forceinline__ explicit Fp8Scale(float row_max) {
    const int exponent = fp8_activation_exponent(row_max);
    scale = __int_as_float((127 + exponent) << 23);
    inverse = __int_as_float((127 - exponent) << 23);
  }
};

__device__ __forceinline__ float max_magnitude(const float (&values)[kVector], float largest) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, fabsf(values[i]));
  return largest;
}

__device__ __forceinline__ uint2 pack_fp8(const float (&values)[kVector], float factor) {
  std::uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    std::uint32_t pairs[2];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int i = 4 * w + 2 * p;
      pairs[p] = e4m3_from_floats(values[i] * factor, values[i + 1] * factor);
    }
    words[w] = pairs[0] | pairs[1] << 16;
  }
  return uint2{words[0], words[1]};
}

}  // namespace gapless
