// Eight dimensions of a head of a parallel decoder, and their rotation.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/math.cuh"

namespace gapless {

// Cosines and sines of a position, of the dimensions of one head from lane % 8 * 8 on.
struct Angles {
  float4 pairs[kVector / 2];  // cos, sin, cos, sin

  __device__ void load(const DecoderLaunch& p, int position, int lane) {
    const int chunk = lane % 8, half = p.rotary_dim / 2 / kVector;
    const auto* table = reinterpret_cast<const float4*>(
        p.rope_table + std::int64_t{position} * p.rotary_dim + chunk % half * (2 * kVector));
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) pairs[i] = __ldg(table + i);
  }
};

// Eight dimensions of one head, from lane % 8 * 8 on, of the token's q, k or v.
struct HeadChunk {
  float values[kVector];

  __device__ static void turn(float& own, float other, float cosine, float sine, bool is_real) {
    own = round_to_bf16(is_real ? own * cosine - other * sine : other * sine + own * cosine);
  }

  // All lanes of a warp, each with its `own` dimensions of q or k. A pair (j, j + rotary_dim / 2)
  // is turned by its angle. Rounded to bf16, as the cache holds it.
  __device__ void load_rotated(const uint4& own, int rotary_dim, const Angles& angles, int lane) {
    const int chunk = lane % 8, half = rotary_dim / 2 / kVector;
    const bool is_real = chunk < half;
    const int other_lane = is_real ? lane + half : lane - half;
    const uint4 other_raw{
        __shfl_sync(kFullWarp, own.x, other_lane), __shfl_sync(kFullWarp, own.y, other_lane),
        __shfl_sync(kFullWarp, own.z, other_lane), __shfl_sync(kFullWarp, own.w, other_lane)};
    unpack(own, values);
    if (chunk >= 2 * half) return;
    float other[kVector];
    unpack(other_raw, other);
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const float4 two = angles.pairs[i / 2];
      turn(values[i], other[i], two.x, two.y, is_real);
      turn(values[i + 1], other[i + 1], two.z, two.w, is_real);
    }
  }
};

}  // namespace gapless
