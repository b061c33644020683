// bfloat16 vectors: eight elements move as one 16-byte access and are computed on as float.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace gapless {

using Bf16 = __nv_bfloat16;

inline constexpr int kVector = 8;  // elements of one 16-byte access

__device__ __forceinline__ void unpack_bf16x2(std::uint32_t packed, float& low, float& high) {
  low = __uint_as_float(packed << 16);
  high = __uint_as_float(packed & 0xffff0000u);
}

__device__ __forceinline__ std::uint32_t pack_bf16x2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ __forceinline__ void unpack(const uint4& raw, float (&values)[kVector]) {
  unpack_bf16x2(raw.x, values[0], values[1]);
  unpack_bf16x2(raw.y, values[2], values[3]);
  unpack_bf16x2(raw.z, values[4], values[5]);
  unpack_bf16x2(raw.w, values[6], values[7]);
}

__device__ __forceinline__ uint4 pack(const float (&values)[kVector]) {
  return uint4{pack_bf16x2(values[0], values[1]), pack_bf16x2(values[2], values[3]),
               pack_bf16x2(values[4], values[5]), pack_bf16x2(values[6], values[7])};
}

__device__ __forceinline__ void load_vector(const Bf16* from, float (&values)[kVector]) {
  unpack(*reinterpret_cast<const uint4*>(from), values);
}

__device__ __forceinline__ void store_vector(Bf16* to, const float (&values)[kVector]) {
  *reinterpret_cast<uint4*>(to) = pack(values);
}

// One rounding to T, kept as float.
__device__ __forceinline__ float round_to_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

}  // namespace gapless
