// Elements of the KV cache, eight at a time: T = bfloat16, or e4m3 (kv_format.h). Whatever they
// are, what is computed on is the same numbers in float.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/fp8_conversion.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace gapless {

__device__ __forceinline__ float2 unpack_half2(std::uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

template <typename Element>
struct KvVector;

template <>
struct KvVector<Bf16> {
  using Raw = uint4;

  __device__ __forceinline__ static void unpack(const Raw& raw, float (&values)[kVector]) {
    gapless::unpack(raw, values);
  }
  __device__ __forceinline__ static Raw pack(const float (&values)[kVector]) {
    return gapless::pack(values);
  }
};

template <>
struct KvVector<E4m3> {
  using Raw = uint2;

  __device__ __forceinline__ static void unpack(const Raw& raw, float (&values)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      std::uint32_t halves[2];
      halves_from_e4m3(i == 0 ? raw.x : raw.y, halves[0], halves[1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 two = unpack_half2(halves[j]);
        values[i + 2 * j] = two.x;
        values[i + 2 * j + 1] = two.y;
      }
    }
  }
  // Rounds to bfloat16 first: what the cache holds is what it would hold as T, rounded.
  __device__ __forceinline__ static Raw pack(const float (&values)[kVector]) {
    std::uint32_t twos[kVector / 2];
#pragma unroll
    for (int i = 0; i < kVector; i += 2) twos[i / 2] = round_pair(values[i], values[i + 1]);
    return {twos[0] | twos[1] << 16, twos[2] | twos[3] << 16};
  }

 private:
  __device__ __forceinline__ static std::uint32_t round_pair(float low, float high) {
    // In the order in which the instruction takes them.
    const float rounded_high = round_to_bf16(high);
    return e4m3_from_floats(round_to_bf16(low), rounded_high);
  }
};

// Eight elements to shared memory.
__device__ __forceinline__ void store_shared_elements(std::uint32_t address, const uint4& raw) {
  store_shared_16(address, raw);
}
__device__ __forceinline__ void store_shared_elements(std::uint32_t address, const uint2& raw) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(raw.x), "r"(raw.y) : "memory");
}

// And back.
__device__ __forceinline__ void load_shared_elements(uint4& raw, std::uint32_t address) {
  std::uint32_t words[4];
  load_shared_16(words, address);
  raw = uint4{words[0], words[1], words[2], words[3]};
}
__device__ __forceinline__ void load_shared_elements(uint2& raw, std::uint32_t address) {
  std::uint32_t words[2];
  load_shared_8(words, address);
  raw = uint2{words[0], words[1]};
}

// One element.
__device__ __forceinline__ void store_kv_element(Bf16* to, float value) {
  *to = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void store_kv_element(E4m3* to, float value) {
  *to = E4m3(round_to_bf16(value));
}

}  // namespace gapless
