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

// Room for activations in a stage of the ring, in fragment order: of all rows, 64 columns or 128.
template <int kRows>
inline constexpr int kHalfXBytes = kXFromMemory<kRows> ? 0 : kRows* kHalfColumns * 2;
template <int kRows>
inline constexpr int kXBytes = 2 * kHalfXBytes<kRows>;

static_assert(kTileRows == kPreparedTileRows && kProductColumns == kPreparedTileColumns);
static_assert(kUnitTiles == kGroupTiles);
static_assert(StageOrder<true>::kWarps == kRingConsumers);

// How products are cut: tiles of a unit at most, and whether stages are halves of chunks (StageOrder).
struct ProductCut {
  int most_tiles = kUnitTiles;
  bool in_halves = false;
};

// From 9 rows on every unit reads all activations. Of a wide model that is a third of what comes into the ring, so there units are
// large; 64 rows have no registers for them. In halves, as many stages as there are warps lie in the ring and others are on their
// way.
template <typename S, PreparedFormat kFormat, int kRows>
inline constexpr ProductCut kProductCut = {
    .most_tiles = false && kHasRegisterExchange && S::kIsSequential && kRows > 8 && kRows < 64
                      ? 2 * kUnitTiles
                      : kUnitTiles,
    .in_halves = false && kHasRegisterExchange && kFormat == PreparedFormat::kNative && kRows > 8 &&
                 (S::kIsSequential || kRows == 64)};

// A fragments of prepared tiles in shared memory (prepared_linear.h), or of halves of tiles, one behind the other. `pair`: of steps
// of 16 columns.
template <PreparedFormat kFormat, int kTiles, int kColumns>
struct TileReader;

template <int kTiles, int kColumns>
struct TileReader<PreparedFormat::kNative, kTiles, kColumns> {
  static constexpr int kTileBytes =
      kPreparedTileBytes<PreparedFormat::kNative> * kColumns / kPreparedTileColumns;
  std::uint32_t from;

  __device__ __forceinline__ explicit TileReader(std::uint32_t tiles)
      : from(tiles + threadIdx.x % kWarp * 16) {}
  __device__ __forceinline__ void load(int /*pair*/) {}
  __device__ void fragment(int tile, int pair, int step, std::uint32_t (&a)[4]) const {
    load_shared_16(a, from + tile * kTileBytes + pair * 1024 + step * 512);
  }
};

template <int kTiles>
struct TileReader<PreparedFormat::kFp8, kTiles, kPreparedTileColumns> {
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
  template <int kMostTiles, int kBlocks>
  __device__ __forceinline__ void change(std::uint32_t /*tiles*/,
                                         float (&/*sums*/)[kMostTiles][kBlocks][4]) {}
  template <int kMostTiles, int kBlocks>
  __device__ __forceinline__ void apply(float (&/*sums*/)[kMostTiles][kBlocks][4]) const {}
};

template <int kTiles>
struct RowScales<PreparedFormat::kFp8, kTiles> {
  int bytes[kTiles][2] = {};  // fp8_scale_byte of rows lane / 4 and lane / 4 + 8

  // From now on those of the stage at `tiles`: the sums so far become multiples of them.
  template <int kMostTiles, int kBlocks>
  __device__ __forceinline__ void change(std::uint32_t tiles,
                                         float (&sums)[kMostTiles][kBlocks][4]) {
    constexpr int kTileBytes = kPreparedTileBytes<PreparedFormat::kFp8>;
    const std::uint32_t from =
        tiles + kPreparedTileRows * kPreparedTileColumns + threadIdx.x % kWarp / 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int byte = load_shared_byte(from + tile * kTileBytes + half * 8);
        const int exponent = min(max(127 + bytes[tile][half] - byte, 0), 254);
        multiply(sums[tile], half, __uint_as_float(static_cast<std::uint32_t>(exponent) << 23));
        bytes[tile][half] = byte;
      }
    }
  }
  template <int kMostTiles, int kBlocks>
  __device__ __forceinline__ void apply(float (&sums)[kMostTiles][kBlocks][4]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(sums[tile], half, fp8_scale(static_cast<std::uint8_t>(bytes[tile][half])));
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

// The activations of a unit.
struct XSource {
  const Bf16* activations;
  UnitColumns columns;
  int ablate = 0;
};

// Blocks of eight rows whose B fragments a thread has at once. All, where registers are exchanged;
// else of 64 rows a few: they and the sums are more than a thread has.
template <int kRows>
inline constexpr int kRowBlocksAtOnce = kHasRegisterExchange || kRows < 64 ? kRows / 8 : 2;

// sums += kTiles tiles times kColumns columns of x. load_x(pair, step, block, b): B fragments of rows from 8 block
// on.
template <PreparedFormat kFormat, int kTiles, int kColumns, int kRows, int kMostTiles,
          typename LoadX>
__device__ __forceinline__ void multiply_columns(std::uint32_t tiles_place, const LoadX& load_x,
                                                 float (&sums)[kMostTiles][kRows / 8][4]) {
  constexpr int kPairs = kColumns / 32;  // of steps
  constexpr int kUnroll = kRows <= 16 ? kPairs : 1;
  constexpr int kNumSums = kMostTiles * kRows / 8;
  constexpr int kStepUnroll = kNumSums <= 16 || kFormat == PreparedFormat::kFp8 ? 2 : 1;
  constexpr int kAtOnce = kRowBlocksAtOnce<kRows>;
  TileReader<kFormat, kTiles, kColumns> tiles(tiles_place);
#pragma unroll kUnroll
  for (int pair = 0; pair < kPairs; ++pair) {
    tiles.load(pair);
#pragma unroll kStepUnroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) tiles.fragment(tile, pair, step, a[tile]);
#pragma unroll
      for (int block = 0; block < kRows / 8; block += kAtOnce) {
        std::uint32_t b[kAtOnce][2];
        load_x(pair, step, block, b);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int n = 0; n < kAtOnce; ++n) {
            mma_of<kFormat>(sums[tile][block + n], a[tile], b[n][0], b[n][1]);
          }
        }
      }
    }
  }
}

// The same, times x in shared memory.
template <PreparedFormat kFormat, int kTiles, int kColumns, int kRows, int kMostTiles>
__device__ __forceinline__ void multiply_shared(std::uint32_t tiles_place, std::uint32_t x_place,
                                                float (&sums)[kMostTiles][kRows / 8][4]) {
  constexpr int kAtOnce = kRowBlocksAtOnce<kRows>;
  const std::uint32_t b_from = x_place + threadIdx.x % kWarp * 8;
  const auto load_x = [&](int pair, int step, int block, std::uint32_t(&b)[kAtOnce][2]) {
    const std::uint32_t half = b_from + pair / 2 * kHalfXBytes<kRows>;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      load_shared_8(b[n], half + (block + n) * (8 * kHalfColumns * 2) + (pair % 2 * 2 + step) * 256);
    }
  };
  multiply_columns<kFormat, kTiles, kColumns, kRows>(tiles_place, load_x, sums);
}

// sums += this warp's stages of the ring from first_stage on, times x, which comes into them. A whole chunk that comes between
// halves is two of these, one behind the other.
template <PreparedFormat kFormat, int kTiles, int kRows, bool kInHalves, int kMostTiles>
__device__ __forceinline__ void multiply_from_ring(const StageRing& ring, unsigned first_stage,
                                                   const XSource& x,
                                                   float (&sums)[kMostTiles][kRows / 8][4], int ablate) {
  const unsigned warp = threadIdx.x / kWarp;
  const StageOrder<kInHalves> order{x.columns.size()};
  const int size = order.size();
  RowScales<kFormat, kTiles> scales;
  int part = -1;
  for (int stage = static_cast<int>((warp - first_stage) % kRingConsumers); stage < size;
       stage += kRingConsumers) {
    const std::uint32_t place = ring.wait_with_x(first_stage + stage);
    if (ablate & 2) { ring.give_back(first_stage + stage); continue; }
    if constexpr (kInHalves) {
      static_assert(kFormat == PreparedFormat::kNative);
      constexpr int kHalfBytes = kTiles * kPreparedTileBytes<kFormat> / 2;
      const int num_halves = order.at(stage).num_halves;
      const std::uint32_t tiles = place + num_halves * kHalfXBytes<kRows>;
#pragma unroll 1
      for (int half = 0; half < num_halves; ++half) {
        multiply_shared<kFormat, kTiles, kHalfColumns, kRows>(
            tiles + half * kHalfBytes, place + half * kHalfXBytes<kRows>, sums);
      }
    } else {
      const std::uint32_t tiles = place + kXBytes<kRows>;
      if (part != x.columns.part(stage)) {
        part = x.columns.part(stage);
        scales.change(tiles, sums);
      }
      multiply_shared<kFormat, kTiles, kProductColumns, kRows>(tiles, place, sums);
    }
    ring.give_back(first_stage + stage);
  }
  scales.apply(sums);
}

// The same for up to 8 rows, times x from memory, where it announces itself.
template <PreparedFormat kFormat, int kTiles>
__device__ __forceinline__ void multiply_from_memory(const StageRing& ring, unsigned first_stage,
                                                     const XSource& x, int num_rows,
                                                     Accumulators<8>& sums) {
  constexpr int kAtOnce = 2;  // pieces of x
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool has_row = static_cast<int>(lane / 4) < num_rows;
  const UnitColumns& columns = x.columns;
  const int size = columns.size();
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
        pieces[i].load(x.activations, columns.chunk(at), has_row && at < size);
      }
#pragma unroll
      for (const MemoryFragments& piece : pieces) complete = complete && piece.complete();
    } while (!complete);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kRingConsumers;
      if (at >= size) break;
      const auto load_x = [&](int pair, int step, int /*block*/, std::uint32_t(&b)[1][2]) {
        const uint4& both = pieces[i].pairs[pair];
        b[0][0] = step == 0 ? both.x : both.z;
        b[0][1] = step == 0 ? both.y : both.w;
      };
      const std::uint32_t place = ring.wait(first_stage + at);
      if (part != columns.part(at)) {
        part = columns.part(at);
        scales.change(place, sums);
      }
      multiply_columns<kFormat, kTiles, kProductColumns, 8>(place, load_x, sums);
      ring.give_back(first_stage + at);
    }
  }
  scales.apply(sums);
}

// num_tiles tiles times x. kWhole: as many as a unit has at most, or half as many.
template <typename S, PreparedFormat kFormat, int kRows, bool kWhole, int kMostTiles>
__device__ __forceinline__ void multiply_tiles(int num_tiles, const StageRing& ring,
                                               unsigned first_stage, const XSource& x, int num_rows,
                                               float (&sums)[kMostTiles][kRows / 8][4]) {
  constexpr ProductCut kCut = kProductCut<S, kFormat, kRows>;
  static_assert(kMostTiles == kCut.most_tiles);
  const auto multiply = [&](auto tiles) {
    constexpr int kTiles = decltype(tiles)::value;
    if constexpr (kXFromMemory<kRows>) {
      multiply_from_memory<kFormat, kTiles>(ring, first_stage, x, num_rows, sums);
    } else {
      multiply_from_ring<kFormat, kTiles, kRows, kCut.in_halves>(ring, first_stage, x, sums, x.ablate);
    }
  };
  static_assert(kGroupTiles == 4);
  if constexpr (kMostTiles == 8) {
    if (num_tiles == 8) return multiply(std::integral_constant<int, 8>{});
    if constexpr (kWhole) return multiply(std::integral_constant<int, 4>{});
    switch (num_tiles) {
      case 7:
        return multiply(std::integral_constant<int, 7>{});
      case 6:
        return multiply(std::integral_constant<int, 6>{});
      case 5:
        return multiply(std::integral_constant<int, 5>{});
      default:
        break;
    }
  }
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
