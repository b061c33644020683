// 8-bit weights as operands of matrix products.
//
// One instruction makes two e4m3 numbers two of half precision, exactly (two of bfloat16 take
// nine). So products with 8-bit weights are products in half precision, and activations become half
// precision too: bfloat16 numbers are, exactly, where they are at least 2^-17 (smaller ones lose
// what is below 2^-24) and at most 65504 (larger ones become that). The row's power of two is
// multiplied into the sums.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/fp8.h"
#include "kernels/prepared_format.h"

namespace gapless {

// How rows' powers of two are kept, in a byte: 2^(byte - kFp8ScaleBias). All that bfloat16 weights
// can have fit (kFp8MaxRowExponent bounds them from above), with 0 for those below 2^-133.
inline constexpr int kFp8ScaleBias = 127 + 120;

__device__ __forceinline__ std::uint8_t fp8_scale_byte(int row_exponent) {
  static_assert(kFp8ScaleBias + kFp8MaxRowExponent == 254);
  return static_cast<std::uint8_t>(kFp8ScaleBias + row_exponent);
}

__device__ __forceinline__ float fp8_scale(std::uint8_t byte) {
  return __uint_as_float(std::uint32_t{byte} << 23) * 0x1p-120f;
}

// Sums that are multiples of one scale, times this, are multiples of another.
__device__ __forceinline__ float fp8_scale_change(int from_byte, int to_byte) {
  const int exponent = min(max(127 + from_byte - to_byte, 0), 254);
  return __uint_as_float(static_cast<std::uint32_t>(exponent) << 23);
}

// Behind a tile in shared memory, of rows lane / 4 of its accumulators: the scale's byte. Those of rows lane / 4 + 8 are 8 bytes further.
__device__ __forceinline__ std::uint32_t scale_byte_of_lane(std::uint32_t tile) {
  return tile + kPreparedTileRows * kPreparedTileColumns + threadIdx.x % kWarp / 4;
}

// An A fragment from its 8 bytes: for each register in turn, its two numbers.
__device__ __forceinline__ void unpack_fp8_fragment(std::uint32_t low, std::uint32_t high,
                                                    std::uint32_t (&fragment)[4]) {
  halves_from_e4m3(low, fragment[0], fragment[1]);
  halves_from_e4m3(high, fragment[2], fragment[3]);
}

// Two activations as they multiply weights of a format.
template <PreparedFormat kFormat>
__device__ __forceinline__ std::uint32_t pack_activations(float low, float high) {
  const std::uint32_t pair = pack_bf16x2(low, high);
  if constexpr (kFormat == PreparedFormat::kNative) return pair;
  unpack_bf16x2(pair, low, high);
  return pack_half2(low, high);
}

template <PreparedFormat kFormat>
__device__ __forceinline__ void mma_of(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                       std::uint32_t b1) {
  if constexpr (kFormat == PreparedFormat::kFp8) {
    mma_half_k16(d, a, b0, b1);
  } else {
    mma_k16(d, a, b0, b1);
  }
}

}  // namespace gapless
