// Scales of query and value heads (HeadScales) in decoder_kernel.cuh.
//
// Their products read all of q, k and v, which many blocks have made. So a block multiplies what it has itself, a unit's columns,
// as soon as it has it, and announces a part of each sum; who attends to a pair of heads adds up their parts, in the order of the
// columns. How columns are cut into parts depends on the device, not on the rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/decoder_work.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/experts_small.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/tau_position.h"

namespace gapless {

// Units of q, k and v that a block has at most: of each comes a part, of those that it lacks zeros.
GAPLESS_HOST_DEVICE inline int scale_parts_per_block(int qkv_width, int num_blocks) {
  const int tiles = qkv_width / kTileRows;
  const int most = (tiles + num_blocks - 1) / num_blocks;
  return (most + kUnitTiles - 1) / kUnitTiles;
}

// The sums of a row lie in fours: of a pair of heads those of both queries, then of both values. Which output of the products
// is the i-th?
__device__ __forceinline__ int scale_output(int i, int num_heads) {
  return i / 4 * 2 + i % 2 + (i % 4 < 2 ? 0 : num_heads);
}

__device__ __forceinline__ int num_scale_parts(const DecoderLaunch& p) {
  return static_cast<int>(gridDim.x) * p.experts.parts_per_block;
}

__device__ __forceinline__ float* scale_part_of(const DecoderLaunch& p, int layer, int part,
                                                int row) {
  const int at = (layer % 2 * num_scale_parts(p) + part) * p.num_rows + row;
  return p.experts.scale_parts + at * (2 * p.num_heads);
}

// A unit's columns of the products' weights as A fragments: a warp has sixteen outputs. Asked for before they are needed.
struct ScaleWeights {
  std::uint32_t a[kUnitTiles][4];  // of 16 columns

  // first_column: of the unit.
  __device__ __forceinline__ void load(const DecoderLaunch& p, const Bf16* products,
                                       int first_column) {
    const unsigned thread = always_afresh(threadIdx.x);
    const int warp = thread / kWarp, lane = thread % kWarp;
    const int width = 3 * p.dim;
#pragma unroll
    for (int step = 0; step < kUnitTiles; ++step) {
      const int column = first_column + step * kTileRows;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = warp * kTileRows + lane / 4 + i % 2 * 8;
        const bool exists = output < 2 * p.num_heads && column < width;
        const Bf16* from =
            products + std::int64_t{scale_output(output, p.num_heads)} * width + column;
        a[step][i] =
            exists ? __ldg(reinterpret_cast<const unsigned*>(from + lane % 4 * 2 + i / 2 * 8)) : 0u;
      }
    }
  }
};

// Of a number of q, k or v, in a unit's column.
__device__ __forceinline__ void keep_scaled(ExpertsSmall<true>& small, int in_unit, int row,
                                            float value) {
  small.scaled[row][in_unit] = __float2bfloat16_rn(gelu_tanh(round_to_bf16(value)));
}

// The computing warps, behind a barrier with who kept the unit's numbers.
template <int kRows>
__device__ __forceinline__ void announce_scale_part(const DecoderLaunch& p, int layer, int part,
                                                    int num_tiles, const ScaleWeights& weights,
                                                    const ExpertsSmall<true>& small) {
  const unsigned thread = always_afresh(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  if (warp * kTileRows >= 2 * p.num_heads) return;
#pragma unroll
  for (int block = 0; block < kRows / 8; ++block) {
    if (block * 8 >= p.num_rows) break;
    float sums[4] = {};
#pragma unroll
    for (int step = 0; step < kUnitTiles; ++step) {
      if (step >= num_tiles) break;
      const std::uint32_t from =
          shared_address(&small.scaled[block * 8 + lane / 4][step * kTileRows + lane % 4 * 2]);
      mma_k16(sums, weights.a[step], load_shared_4(from), load_shared_4(from + 16));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = block * 8 + lane % 4 * 2 + i % 2;
      const int output = warp * kTileRows + lane / 4 + i / 2 * 8;
      if (row >= p.num_rows || output >= 2 * p.num_heads) continue;
      announce_value(scale_part_of(p, layer, part, row) + output,
                     scale_part_of(p, layer + 1, part, row) + output, sums[i]);
    }
  }
}

// The same for a unit that the block does not have.
__device__ __forceinline__ void announce_no_scale_part(const DecoderLaunch& p, int layer,
                                                       int part) {
  for (int i = always_afresh(threadIdx.x); i < p.num_rows * 2 * p.num_heads; i += kProductThreads) {
    announce_value(scale_part_of(p, layer, part, 0) + i, scale_part_of(p, layer + 1, part, 0) + i,
                   0.0f);
  }
}

// What a pair of heads of a row is multiplied by.
struct PairScales {
  float query[2], value[2];

  // What follows from the position alone: before anything is waited for.
  __device__ __forceinline__ void begin(const DecoderLaunch& p, int layer, int heads,
                                        int position) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      const float alpha = __bfloat162float(p.experts.layers[layer].alpha[heads * 2 + head]);
      query[head] = value[head] = tau_position(alpha, position, p.experts.bf16_positions);
    }
  }

  // One warp, all lanes get all. Waits until the parts are there.
  __device__ __forceinline__ void finish(const DecoderLaunch& p, int layer, int row, int heads) {
    constexpr int kAtOnce = 5;  // 160 parts: more than there are multiprocessors
    const int lane = always_afresh(threadIdx.x) % kWarp;
    const int num_parts = num_scale_parts(p);
    float sums[4] = {};
#pragma unroll 1
    for (int first = 0; first < num_parts; first += kAtOnce * kWarp) {
      uint4 raw[kAtOnce];
      bool complete;
      do {
        complete = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int part = first + i * kWarp + lane;
          raw[i] = part < num_parts ? load_announced(scale_part_of(p, layer, part, row) + heads * 4)
                                    : uint4{};
          complete = complete && all_written<float>(raw[i]);
        }
      } while (!complete);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sums[0] += __uint_as_float(raw[i].x);
        sums[1] += __uint_as_float(raw[i].y);
        sums[2] += __uint_as_float(raw[i].z);
        sums[3] += __uint_as_float(raw[i].w);
      }
    }
    __syncwarp();
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      query[head] += tanhf(warp_sum(sums[head]));
      value[head] += tanhf(warp_sum(sums[2 + head]));
    }
  }
};

// Eight numbers times a factor, rounded.
__device__ __forceinline__ uint4 scaled(const uint4& raw, float factor) {
  float values[kVector];
  unpack(raw, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] *= factor;
  return pack(values);
}

}  // namespace gapless
