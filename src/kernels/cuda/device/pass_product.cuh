// Products of the rows of a pass (expert_route.h) in decoder_kernel.cuh: 8-bit weights, 9 to 32 rows of a step.
//
// The rows are the same for all of a pass' units, so they are brought into shared memory once: kPassRowBytes, behind the ring. As in
// warpgroup_product.cuh every second stage belongs to a group of four warps, each of which multiplies its own tiles of it, so
// a stage is in use for a short time, and each tile's sums are those of two warps, one of each group. These two exchange
// halves of them, and wait for nobody else.
//
// The order of sums is that of row_product.cuh: every eighth piece of 128 columns has sums of its own, of which a warp has four.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/decoder_products.cuh"
#include "kernels/cuda/device/fp8_tile.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/stage_ring.cuh"
#include "kernels/cuda/device/warpgroup_product.cuh"
#include "kernels/cuda/expert_route.h"

namespace gapless {

// The rows of a pass, up to eight, in shared memory at `place`: per 128 columns a piece, in the order in which the step's rows lie in memory.
template <int kRows>
class PassRows {
  static constexpr int kPieceBytes =
      kPassRows<kRows, PreparedFormat::kFp8> * kProductColumns * sizeof(Bf16);
  static constexpr int kLaneBytes = 16;  // of a load
  static constexpr int kLoads = kPieceBytes / kLaneBytes;
  static constexpr int kPiecesAtOnce = kProductThreads / kLoads;
  static constexpr int kStepBytes = 8 * 16 * sizeof(Bf16);
  static_assert(kPassRows<kRows, PreparedFormat::kFp8> == 8 && !kXFromMemory<kRows>);

 public:
  __device__ explicit PassRows(std::uint32_t place) : place_(place) {}

  // Which of a pass' rows a thread brings, and where in a piece of the step's rows its numbers of row `row` are.
  __device__ static int own_row() { return static_cast<int>(always_afresh(threadIdx.x)) / 2 % 8; }
  __device__ static int index_of(int row) {
    const int load = static_cast<int>(always_afresh(threadIdx.x)) % kLoads, step = load / 16;
    return (row / 8 * kLoads + step * 16 + row % 8 * 2 + load % 2) * kVector;
  }

  // All computing warps: the rows of another pass, `chunks` pieces of 128 columns of each. `from`: the first of the thread's own; nullptr:
  // its row is not there.
  __device__ __forceinline__ void bring(const Bf16* from, int chunks) const {
    constexpr int kUnroll = 4;
    const int thread = static_cast<int>(always_afresh(threadIdx.x));
    named_barrier(1, kProductThreads);  // nobody reads those of the last pass any more
    if (from != nullptr) {
      const std::uint32_t to = place_ + thread % kLoads * kLaneBytes;
#pragma unroll 1
      for (int first = thread / kLoads; first < chunks; first += kUnroll * kPiecesAtOnce) {
        uint4 raw[kUnroll];
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          const int chunk = first + i * kPiecesAtOnce;
          if (chunk < chunks) {
            raw[i] =
                __ldcg(reinterpret_cast<const uint4*>(from + chunk * (kRows * kProductColumns)));
          }
        }
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          const int chunk = first + i * kPiecesAtOnce;
          if (chunk < chunks) store_shared_16(to + chunk * kPieceBytes, raw[i]);
        }
      }
    }
    named_barrier(1, kProductThreads);
  }

  // This lane's B fragments of a chunk of 128 columns, for two steps of 16 columns.
  __device__ __forceinline__ void fragments(int chunk, int pair, std::uint32_t (&b)[2][2]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::uint32_t from = place_ + chunk * kPieceBytes + pair * (2 * kStepBytes) + lane * 8;
#pragma unroll
    for (int step = 0; step < 2; ++step) load_shared_8(b[step], from + step * kStepBytes);
  }

 private:
  const std::uint32_t place_;
};

// W x of one unit after the other, W from the ring and x the rows of a pass. A warp has one of a unit's tiles.
template <PreparedFormat kFormat, int kRows>
class PassProduct {
  static_assert(kFormat == PreparedFormat::kFp8 && kUnitTiles == kGroupWarps);
  static constexpr int kTileBytes = kPreparedTileBytes<kFormat>;
  static constexpr int kHalfBytes = kWarp * sizeof(float2);  // of a tile's sums

 public:
  static constexpr int kExchangeBytes = 2 * kProductWarps * kHalfBytes;

  // The unit's stages begin with first_stage, `chunks` for both groups.
  __device__ __forceinline__ void multiply(const StageRing& ring, unsigned first_stage, int chunks,
                                           int num_tiles, const PassRows<kRows>& x) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, tile = warp % kGroupWarps;
    has_tile_ = tile < num_tiles;
#pragma unroll
    for (auto& turn : sums_) {
#pragma unroll
      for (float& sum : turn) sum = 0;
    }
    // A group has every second stage of the ring, so it meets every phase of their barriers, however many chunks units have.
    const int begin = static_cast<int>((warp / kGroupWarps + first_stage) % kProductGroups);
#pragma unroll 1
    for (int first = begin; first < chunks; first += kRingConsumers) {
#pragma unroll
      for (int turn = 0; turn < kGroupTurns; ++turn) {
        const int chunk = first + turn * kProductGroups;
        if (chunk >= chunks) break;
        const unsigned stage = first_stage + static_cast<unsigned>(chunk);
        const std::uint32_t from = ring.wait(stage) + tile * kTileBytes;
        if (has_tile_) {
          if (turn == 0 && first == begin) load_scales(from);
          multiply_stage(from, x, chunk, sums_[turn]);
        }
        ring.give_back_share(stage);
      }
    }
  }

  // Adds up over both groups: use(tile, row of the tile, sums) by whole warps, for this lane's two rows of the pass, which are lane % 4 * 2
  // and the next one. `buffer`: kExchangeBytes, of all computing warps alone.
  template <typename Use>
  __device__ __forceinline__ void add_up(std::uint32_t buffer, const Use& use) {
    if (!has_tile_) return;
    const unsigned thread = always_afresh(threadIdx.x), lane = thread % kWarp;
    const unsigned tile = thread / kWarp % kGroupWarps, group = thread / kWarp / kGroupWarps;
    // By turns, so that nobody writes what the other warp still reads.
    is_second_ = !is_second_;
    const std::uint32_t place =
        buffer + ((is_second_ ? kGroupWarps : 0) + tile) * (2 * kHalfBytes) + lane * 8;
    float own[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      own[i] = 0;
#pragma unroll
      for (auto& turn : sums_) own[i] += turn[i];
      own[i] *= scale(i / 2);
    }
    const float keep[2] = {group == 0 ? own[0] : own[2], group == 0 ? own[1] : own[3]};
    store_shared_8(place + group * kHalfBytes, group == 0 ? own[2] : own[0],
                   group == 0 ? own[3] : own[1]);
    named_barrier(2 + static_cast<int>(tile), kProductGroups * kWarp);
    std::uint32_t other[2];
    load_shared_8(other, place + (1 - group) * kHalfBytes);
    const float sums[2] = {keep[0] + __uint_as_float(other[0]),
                           keep[1] + __uint_as_float(other[1])};
    use(static_cast<int>(tile), static_cast<int>(group * 8 + lane / 4), sums);
  }

 private:
  __device__ __forceinline__ static void multiply_stage(std::uint32_t from,
                                                        const PassRows<kRows>& x, int chunk,
                                                        float (&sums)[4]) {
    constexpr int kPairs = kProductColumns / 32;  // of steps
    TileReader<kFormat, 1> reader(from);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      std::uint32_t b[2][2];
      x.fragments(chunk, pair, b);
      reader.load(pair);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t a[4];
        reader.fragment(0, pair, step, a);
        mma_of<kFormat>(sums, a, b[step][0], b[step][1]);
      }
    }
  }

  // Those of rows lane / 4 and lane / 4 + 8 of this warp's tile (fp8_scale_byte).
  __device__ __forceinline__ void load_scales(std::uint32_t from) {
    const std::uint32_t scales = scale_byte_of_lane(from);
    scale_bytes_ = load_shared_byte(scales) | load_shared_byte(scales + 8) << 8;
  }
  __device__ __forceinline__ float scale(int half) const {
    return fp8_scale(static_cast<std::uint8_t>(scale_bytes_ >> half * 8));
  }

  bool has_tile_ = false, is_second_ = false;
  int scale_bytes_ = 0;
  float sums_[kGroupTurns][4];
};

}  // namespace gapless
