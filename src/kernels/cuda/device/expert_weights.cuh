// Weights of experts as they lie in memory, and on their way to the operands of expert_product.cuh. Rows begin as far from
// each other as rows of T, whatever their numbers take (FeedForward).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"

namespace gapless {

struct NativeExperts {
  static constexpr int kElementBytes = 2;
  using Raw = uint4;  // eight elements

  __device__ __forceinline__ static uint4 widen(const uint4& raw) { return raw; }
};

// e4m3. Of a row's sum the scale is left out; as a power of two it may be multiplied in at the end, with the same bits.
struct Fp8Experts {
  static constexpr int kElementBytes = 1;
  using Raw = uint2;

  __device__ __forceinline__ static uint4 widen(const uint2& raw) {
    return {widen_two(raw.x & 0xffffu), widen_two(raw.x >> 16), widen_two(raw.y & 0xffffu),
            widen_two(raw.y >> 16)};
  }

 private:
  // Exponent and mantissa of an e4m3 number, put where bfloat16 has the low end of its own, are the number times 2^-120; so are those
  // of numbers without a leading one.
  __device__ __forceinline__ static std::uint32_t widen_two(std::uint32_t two) {
    const std::uint32_t apart = (two | two << 8) & 0x00ff00ffu;
    const std::uint32_t small = (apart & 0x007f007fu) << 4 | (apart & 0x00800080u) << 8;
    constexpr std::uint32_t kTwoTo120 = 0x7b807b80u;
    const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(small),
                                           reinterpret_cast<const __nv_bfloat162&>(kTwoTo120));
    return reinterpret_cast<const std::uint32_t&>(product);
  }
};

}  // namespace gapless
