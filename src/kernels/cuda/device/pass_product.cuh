// Products of the rows of a pass (expert_route.h) in decoder_kernel.cuh: 8-bit weights, from 9 rows of a step on.
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

// Where a thread finds the row of a pass that it brings, of each eight one: its first columns; -1: there is none.
template <int kBlocks>
struct BroughtRows {
  int at[kBlocks];
};

// The rows of a pass in shared memory, at `place`: per 128 columns and 8 rows a piece, in the order in which the step's rows lie in memory.
template <int kRows, int kBlocks>
class PassRows {
  static constexpr int kPieceBytes = 8 * kProductColumns * sizeof(Bf16);
  static constexpr int kLaneBytes = 16;  // of a load
  static constexpr int kLoads = kPieceBytes / kLaneBytes;
  static constexpr int kPiecesAtOnce = kProductThreads / kLoads;
  static constexpr int kStepBytes = 8 * 16 * sizeof(Bf16);
  static_assert(!kXFromMemory<kRows>);

 public:
  __device__ explicit PassRows(std::uint32_t place) : place_(place) {}

  // Which of a pass' rows a thread brings, of each eight, and where in a piece of eight rows its numbers of row `row` are.
  __device__ static int own_row() { return static_cast<int>(always_afresh(threadIdx.x)) / 2 % 8; }
  __device__ static int index_of(int row) {
    const int load = static_cast<int>(always_afresh(threadIdx.x)) % kLoads, step = load / 16;
    return (row / 8 * kLoads + step * 16 + row % 8 * 2 + load % 2) * kVector;
  }

  // All computing warps: the rows of another pass, `chunks` pieces of 128 columns of each.
  __device__ __forceinline__ void bring(const Bf16* numbers, const BroughtRows<kBlocks>& rows,
                                        int chunks) const {
    constexpr int kUnroll = 4;
    const int thread = static_cast<int>(always_afresh(threadIdx.x));
    named_barrier(1, kProductThreads);  // nobody reads those of the last pass any more
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (rows.at[block] < 0) continue;
      const Bf16* from = numbers + rows.at[block];
      const std::uint32_t to = place_ + block * kPieceBytes + thread % kLoads * kLaneBytes;
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
          if (chunk < chunks) store_shared_16(to + chunk * (kBlocks * kPieceBytes), raw[i]);
        }
      }
    }
    named_barrier(1, kProductThreads);
  }

  // This lane's B fragments of a chunk of 128 columns, for two steps of 16 columns and a block of eight rows.
  __device__ __forceinline__ void fragments(int chunk, int block, int pair,
                                            std::uint32_t (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::uint32_t from =
        place_ + (chunk * kBlocks + block) * kPieceBytes + pair * (2 * kStepBytes) + lane * 8;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t of_step[2];
      load_shared_8(of_step, from + step * kStepBytes);
      b[step * 2] = of_step[0], b[step * 2 + 1] = of_step[1];
    }
  }

 private:
  const std::uint32_t place_;
};

// W x of one unit after the other, W from the ring and x the rows of a pass. A warp has one of a unit's tiles.
template <PreparedFormat kFormat, int kRows, int kBlocks>
class PassProduct {
  static_assert(kUnitTiles == kGroupWarps);
  static constexpr int kTileBytes = kPreparedTileBytes<kFormat>;
  static constexpr int kHalfBytes = kBlocks * kWarp * sizeof(float2);  // of a tile's sums

 public:
  static constexpr int kExchangeBytes = 2 * kProductWarps * kHalfBytes;

  // The unit's stages begin with first_stage, `chunks` for both groups; num_blocks eights of rows.
  __device__ __forceinline__ void multiply(const StageRing& ring, unsigned first_stage, int chunks,
                                           int num_tiles, const PassRows<kRows, kBlocks>& x,
                                           int num_blocks) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, tile = warp % kGroupWarps;
    has_tile_ = tile < num_tiles;
#pragma unroll
    for (auto& turn : sums_) {
#pragma unroll
      for (auto& block : turn) {
#pragma unroll
        for (float& sum : block) sum = 0;
      }
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
          multiply_stage(from, x, chunk, num_blocks, sums_[turn]);
        }
        ring.give_back_share(stage);
      }
    }
  }

  // Adds up over both groups: use(tile, row of the tile, block of eight rows, sums) by whole warps, for this lane's two rows of the eight,
  // which are lane % 4 * 2 and the next one. `buffer`: kExchangeBytes, of all computing warps alone.
  template <typename Use>
  __device__ __forceinline__ void add_up(int num_blocks, std::uint32_t buffer, const Use& use) {
    if (!has_tile_) return;
    const unsigned thread = always_afresh(threadIdx.x), lane = thread % kWarp;
    const unsigned tile = thread / kWarp % kGroupWarps, group = thread / kWarp / kGroupWarps;
    // By turns, so that nobody writes what the other warp still reads.
    is_second_ = !is_second_;
    const std::uint32_t place =
        buffer + ((is_second_ ? kGroupWarps : 0) + tile) * (2 * kHalfBytes) + lane * 8;
    float keep[kBlocks][2];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float own[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        own[i] = 0;
#pragma unroll
        for (auto& turn : sums_) own[i] += turn[block][i];
        own[i] *= scale(i / 2);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) keep[block][i] = group == 0 ? own[i] : own[2 + i];
      store_shared_8(place + group * kHalfBytes + block * (kWarp * 8), group == 0 ? own[2] : own[0],
                     group == 0 ? own[3] : own[1]);
    }
    named_barrier(2 + static_cast<int>(tile), kProductGroups * kWarp);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block >= num_blocks) break;
      std::uint32_t other[2];
      load_shared_8(other, place + (1 - group) * kHalfBytes + block * (kWarp * 8));
      const float sums[2] = {keep[block][0] + __uint_as_float(other[0]),
                             keep[block][1] + __uint_as_float(other[1])};
      use(static_cast<int>(tile), static_cast<int>(group * 8 + lane / 4), block, sums);
    }
  }

 private:
  using StageSums = float[kBlocks][4];

  __device__ __forceinline__ static void multiply_stage(std::uint32_t from,
                                                        const PassRows<kRows, kBlocks>& x,
                                                        int chunk, int num_blocks,
                                                        StageSums& sums) {
    constexpr int kPairs = kProductColumns / 32;  // of steps
    TileReader<kFormat, 1> reader(from);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      std::uint32_t b[kBlocks][4];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (block > 0 && block >= num_blocks) break;
        x.fragments(chunk, block, pair, b[block]);
      }
      reader.load(pair);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t a[4];
        reader.fragment(0, pair, step, a);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          if (block > 0 && block >= num_blocks) break;
          mma_of<kFormat>(sums[block], a, b[block][step * 2], b[block][step * 2 + 1]);
        }
      }
    }
  }

  // Those of rows lane / 4 and lane / 4 + 8 of this warp's tile (fp8_scale_byte).
  __device__ __forceinline__ void load_scales(std::uint32_t from) {
    if constexpr (kFormat == PreparedFormat::kFp8) {
      const std::uint32_t scales = scale_byte_of_lane(from);
      scale_bytes_ = load_shared_byte(scales) | load_shared_byte(scales + 8) << 8;
    }
  }
  __device__ __forceinline__ float scale(int half) const {
    if constexpr (kFormat == PreparedFormat::kNative) return 1;
    return fp8_scale(static_cast<std::uint8_t>(scale_bytes_ >> half * 8));
  }

  bool has_tile_ = false, is_second_ = false;
  int scale_bytes_ = 0;
  StageSums sums_[kGroupTurns];
};

}  // namespace gapless
