// Data that says itself whether it is there yet: memory holds kNotWritten until the value comes,
// and readers look until they see something else. A quarter of the time of data behind a counter
// (grid_counters.cuh): nobody has to wait until a write has arrived in order to say so.
//
// kNotWritten is a NaN, as one float32 and as two bfloat16, that no instruction makes. Only results
// of arithmetic and conversions may be stored.
//
// Such memory is double: turn t uses the (t % 2)-th half. Whoever writes a value of turn t also
// writes kNotWritten into its place in the other half. So readers of turn t must be through before
// anyone writes in turn t + 1, and the writes of turn t must be visible (through a counter) to
// whoever reads in turn t + 1. Turn 0 finds memory as it was, and needs a counter.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"

namespace gapless {

inline constexpr std::uint32_t kNotWritten = 0xffffffffu;

__device__ __forceinline__ void announce_value(float* half, float* other_half, float value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(half), "f"(value) : "memory");
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(other_half), "r"(kNotWritten)
               : "memory");
}

__device__ __forceinline__ void announce_value(Bf16* half, Bf16* other_half, Bf16 value) {
  asm volatile("st.relaxed.gpu.global.b16 [%0], %1;" ::"l"(half), "h"(__bfloat16_as_ushort(value))
               : "memory");
  asm volatile("st.relaxed.gpu.global.b16 [%0], %1;" ::"l"(other_half),
               "h"(static_cast<unsigned short>(kNotWritten))
               : "memory");
}

// Two bfloat16.
__device__ __forceinline__ void announce_value(std::uint32_t* half, std::uint32_t* other_half,
                                               std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(half), "r"(value) : "memory");
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(other_half), "r"(kNotWritten)
               : "memory");
}

// Four neighbours, at an address that is aligned for them.
__device__ __forceinline__ void announce_values(float* half, float* other_half,
                                                const float (&values)[4]) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(half), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1,%1,%1,%1};" ::"l"(other_half),
               "r"(kNotWritten)
               : "memory");
}
__device__ __forceinline__ void announce_values(Bf16* half, Bf16* other_half,
                                                const float (&values)[4]) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1,%2};" ::"l"(half),
               "r"(pack_bf16x2(values[0], values[1])), "r"(pack_bf16x2(values[2], values[3]))
               : "memory");
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1,%1};" ::"l"(other_half), "r"(kNotWritten)
               : "memory");
}
// One.
__device__ __forceinline__ void announce_values(float* half, float* other_half,
                                                const float (&values)[1]) {
  announce_value(half, other_half, values[0]);
}
__device__ __forceinline__ void announce_values(Bf16* half, Bf16* other_half,
                                                const float (&values)[1]) {
  announce_value(half, other_half, __float2bfloat16_rn(values[0]));
}

__device__ __forceinline__ bool is_written(std::uint32_t word, float /*type*/) {
  return word != kNotWritten;
}
__device__ __forceinline__ bool is_written(std::uint32_t word, Bf16 /*type*/) {
  return (word | 0xffff0000u) != kNotWritten && (word | 0xffffu) != kNotWritten;
}

// 16 bytes, written or not.
template <typename T>
__device__ __forceinline__ uint4 load_announced(const T* from) {
  uint4 value;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

template <typename T>
__device__ __forceinline__ bool all_written(const uint4& value) {
  return is_written(value.x, T{}) && is_written(value.y, T{}) && is_written(value.z, T{}) &&
         is_written(value.w, T{});
}

// from(i): where the i-th are.
template <typename T, int kCount, typename From>
__device__ __forceinline__ void load_when_written(const From& from, uint4 (&values)[kCount]) {
  bool complete;
  do {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = load_announced(from(i));
    complete = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) complete = complete && all_written<T>(values[i]);
  } while (!complete);
}
// Reads 16 bytes from each address, again and again until all of them are written.
template <typename T, int kCount>
__device__ __forceinline__ void load_when_written(const T* const (&from)[kCount],
                                                  uint4 (&values)[kCount]) {
  load_when_written<T>([&](int i) { return from[i]; }, values);
}

}  // namespace gapless
