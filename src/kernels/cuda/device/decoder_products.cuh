// The matrix products of decoder_kernel.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/decoder_work.h"
#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/fp8_tile.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/stage_ring.cuh"
#include "kernels/cuda/prepared_linear.h"

namespace gapless {

// Room for activations in a stage of the ring: 128 columns of all rows, in fragment order.
template <int kRows>
inline constexpr int kXBytes = kXFromMemory<kRows> ? 0 : kRows* kProductColumns * 2;

static_assert(kTileRows == kPreparedTileRows && kProductColumns == kPreparedTileColumns);
static_assert(kUnitTiles == kGroupTiles);

// A fragments of prepared tiles in shared memory (prepared_linear.h). `pair`: of steps of 16
// columns.
template <PreparedFormat kFormat, int kTiles>
struct TileReader;

template <int kTiles>
struct TileReader<PreparedFormat::kNative, kTiles> {
  std::uint32_t from;

  __device__ __forceinline__ explicit TileReader(std::uint32_t tiles)
      : from(tiles + threadIdx.x % kWarp * 16) {}
  __device__ __forceinline__ void load(int /*pair*/) {}
  __device__ void fragment(int tile, int pair, int step, std::uint32_t (&a)[4]) const {
    load_shared_16(
        a, from + tile * kPreparedTileBytes<PreparedFormat::kNative> + pair * 1024 + step * 512);
  }
};

template <int kTiles>
struct TileReader<PreparedFormat::kFp8, kTiles> {
  static constexpr int kTileBytes = kPreparedTileBytes<PreparedFormat::kFp8>;
  std::uint32_t from;
  std::uint32_t raw[kTiles][4];  // a pair's

  __device__ __forceinline__ explicit TileReader(std::uint32_t tiles)
      : from(tiles + threadIdx.x % kWarp * 16) {}
  __device__ __forceinline__ void load(int pair) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_shared_16(raw[tile], from + tile * kTileBytes + pair * 512);
    }
  }
  __device__ void fragment(int tile, int /*pair*/, int step, std::uint32_t (&a)[4]) const {
    unpack_fp8_fragment(raw[tile][step * 2], raw[tile][step * 2 + 1], a);
  }
};

// The powers of two of a product's rows. A stage of the ring brings those of its weights along;
// weights of both parts of a product (XSource) have their own.
template <PreparedFormat kFormat, int kTiles>
struct RowScales {
  template <int kBlocks>
  __device__ __forceinline__ void change(std::uint32_t /*tiles*/,
                                         float (&/*sums*/)[kGroupTiles][kBlocks][4]) {}
  template <int kBlocks>
  __device__ __forceinline__ void apply(float (&/*sums*/)[kGroupTiles][kBlocks][4]) const {}
};

template <int kTiles>
struct RowScales<PreparedFormat::kFp8, kTiles> {
  // fp8_scale_byte of each tile's rows lane / 4 and lane / 4 + 8: where registers are not exchanged, four in a register.
  static constexpr int kInWord = kHasRegisterExchange ? 1 : 4;
  int words[(2 * kTiles + kInWord - 1) / kInWord] = {};

  __device__ __forceinline__ int byte_of(int tile, int half) const {
    const int i = tile * 2 + half;
    return kInWord == 1 ? words[i / kInWord] : words[i / kInWord] >> (i % 4 * 8) & 0xff;
  }
  __device__ __forceinline__ void set_byte(int tile, int half, int byte) {
    const int i = tile * 2 + half, shift = i % 4 * 4;
    int& word = words[i / kInWord];
    word = kInWord == 1
               ? byte
               : static_cast<int>(__byte_perm(word, byte, (0x3210 & ~(0xf << shift)) | 4 << shift));
  }

  // From now on those of the stage at `tiles`: the sums so far become multiples of them.
  template <int kBlocks>
  __device__ __forceinline__ void change(std::uint32_t tiles,
                                         float (&sums)[kGroupTiles][kBlocks][4]) {
    constexpr int kTileBytes = kPreparedTileBytes<PreparedFormat::kFp8>;
    const std::uint32_t from = scale_byte_of_lane(tiles);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int byte = load_shared_byte(from + tile * kTileBytes + half * 8);
        multiply(sums[tile], half, fp8_scale_change(byte_of(tile, half), byte));
        set_byte(tile, half, byte);
      }
    }
  }
  template <int kBlocks>
  __device__ __forceinline__ void apply(float (&sums)[kGroupTiles][kBlocks][4]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(sums[tile], half, fp8_scale(static_cast<std::uint8_t>(byte_of(tile, half))));
      }
    }
  }

 private:
  template <int kBlocks>
  static __device__ __forceinline__ void multiply(float (&sums)[kBlocks][4], int half,
                                                  float factor) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      sums[n][half * 2] *= factor;
      sums[n][half * 2 + 1] *= factor;
    }
  }
};

// The activations of a product: its columns' pieces of 128, one behind the other.
struct XSource {
  const Bf16* activations;
  ChunkRange first, second;  // then these; may be none

  __device__ int size() const { return first.size() + second.size(); }
  __device__ int part(int i) const { return i < first.size() ? 0 : 1; }
  __device__ int chunk(int i) const {
    return i < first.size() ? first.begin + i : second.begin + i - first.size();
  }
};

// sums += one stage: kTiles tiles times 128 columns of x. load_x(pair, step, b): B fragments of each eight rows.
template <PreparedFormat kFormat, int kTiles, int kRows, typename LoadX>
__device__ __forceinline__ void multiply_stage(std::uint32_t tiles_place, const LoadX& load_x,
                                               Accumulators<kRows>& sums) {
  constexpr int kPairs = kProductColumns / 32;  // of steps
  constexpr int kUnroll = kRows <= 16 ? kPairs : 1;
  constexpr int kStepUnroll = kRows <= 32 || kFormat == PreparedFormat::kFp8 ? 2 : 1;
  constexpr int kBlocks = kRows / 8;
  TileReader<kFormat, kTiles> tiles(tiles_place);
#pragma unroll kUnroll
  for (int pair = 0; pair < kPairs; ++pair) {
    tiles.load(pair);
#pragma unroll kStepUnroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) tiles.fragment(tile, pair, step, a[tile]);
      std::uint32_t b[kBlocks][2];
      load_x(pair, step, b);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          mma_of<kFormat>(sums[tile][n], a[tile], b[n][0], b[n][1]);
        }
      }
    }
  }
}

// sums += this warp's stages of the ring from first_stage on, times x, which comes into them.
template <PreparedFormat kFormat, int kTiles, int kRows>
__device__ __forceinline__ void multiply_from_ring(const StageRing& ring, unsigned first_stage,
                                                   const XSource& x, Accumulators<kRows>& sums) {
  const unsigned thread = afresh(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int size = x.size();
  RowScales<kFormat, kTiles> scales;
  int part = -1;
  for (int chunk = static_cast<int>((warp - first_stage) % kRingConsumers); chunk < size;
       chunk += kRingConsumers) {
    const std::uint32_t place = ring.wait_with_x(first_stage + chunk);
    if (part != x.part(chunk)) {
      part = x.part(chunk);
      scales.change(place + kXBytes<kRows>, sums);
    }
    const std::uint32_t b_from = place + lane * 8;
    const auto load_x = [&](int pair, int step, std::uint32_t(&b)[kRows / 8][2]) {
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
        load_shared_8(b[n], b_from + n * (8 * kProductColumns * 2) + (pair * 2 + step) * 256);
      }
    };
    multiply_stage<kFormat, kTiles, kRows>(place + kXBytes<kRows>, load_x, sums);
    ring.give_back(first_stage + chunk);
  }
  scales.apply(sums);
}

// The same for up to 8 rows, times x from memory, where it announces itself.
template <PreparedFormat kFormat, int kTiles>
__device__ __forceinline__ void multiply_from_memory(const StageRing& ring, unsigned first_stage,
                                                     const XSource& x, int num_rows,
                                                     Accumulators<8>& sums) {
  constexpr int kAtOnce = 2;  // pieces of x
  const unsigned thread = afresh(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const bool has_row = static_cast<int>(lane / 4) < num_rows;
  const int size = x.size();
  RowScales<kFormat, kTiles> scales;
  int part = -1;
  for (int first = static_cast<int>((warp - first_stage) % kRingConsumers); first < size;
       first += kAtOnce * kRingConsumers) {
    MemoryFragments pieces[kAtOnce];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kRingConsumers;
        pieces[i].load(x.activations, x.chunk(at), has_row && at < size);
      }
#pragma unroll
      for (const MemoryFragments& piece : pieces) complete = complete && piece.complete();
    } while (!complete);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kRingConsumers;
      if (at >= size) break;
      const auto load_x = [&](int pair, int step, std::uint32_t(&b)[1][2]) {
        const uint4& both = pieces[i].pairs[pair];
        b[0][0] = step == 0 ? both.x : both.z;
        b[0][1] = step == 0 ? both.y : both.w;
      };
      const std::uint32_t place = ring.wait(first_stage + at);
      if (part != x.part(at)) {
        part = x.part(at);
        scales.change(place, sums);
      }
      multiply_stage<kFormat, kTiles, 8>(place, load_x, sums);
      ring.give_back(first_stage + at);
    }
  }
  scales.apply(sums);
}

// num_tiles <= kGroupTiles tiles times x.
template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void multiply_tiles(int num_tiles, const StageRing& ring,
                                               unsigned first_stage, const XSource& x, int num_rows,
                                               Accumulators<kRows>& sums) {
  const auto multiply = [&](auto tiles) {
    constexpr int kTiles = decltype(tiles)::value;
    if constexpr (kXFromMemory<kRows>) {
      multiply_from_memory<kFormat, kTiles>(ring, first_stage, x, num_rows, sums);
    } else {
      multiply_from_ring<kFormat, kTiles, kRows>(ring, first_stage, x, sums);
    }
  };
  static_assert(kGroupTiles == 4);
  switch (num_tiles) {
    case 4:
      return multiply(std::integral_constant<int, 4>{});
    case 3:
      return multiply(std::integral_constant<int, 3>{});
    case 2:
      return multiply(std::integral_constant<int, 2>{});
    default:
      return multiply(std::integral_constant<int, 1>{});
  }
}

// The sum over the computing warps, in every thread of them. `shared` holds one float per warp and
// may be used again right after the call.
__device__ __forceinline__ float product_block_sum(float value, float* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  value = warp_sum(value);
  if (lane == 0) shared[warp] = value;
  named_barrier(1, kProductThreads);
  value = lane < kProductWarps ? shared[lane] : 0.0f;
  value = warp_sum(value);
  named_barrier(1, kProductThreads);
  return value;
}

}  // namespace gapless
