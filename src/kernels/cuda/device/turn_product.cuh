// Products of 65 to 128 rows of x in decoder_kernel.cuh by warpgroups (warpgroup_product.cuh), and what all numbers of rows
// share: ProductSums.
//
// An output is the sum of a warpgroup's four turns, in order, and a turn's sum that of its chunks, in order. Up to 64 rows a thread
// holds the sums of all turns and takes chunks as they lie. Those of 128 rows are 256 numbers, so here a unit's chunks come turn by
// turn (chunk_in_turn), and a thread holds one turn's sums, and what the turns before have become. The bits are the same.
#pragma once

#include "kernels/cuda/device/warpgroup_product.cuh"

namespace gapless {

static_assert(kChunkTurns == kGroupTurns && kProductGroups == 2);

// sums += this warpgroup's stages of the ring from first_stage on, times x, which comes into them.
template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void multiply_by_turns(int num_tiles, const StageRing& ring,
                                                  unsigned first_stage, const XSource& x,
                                                  float (&sums)[kRows / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, group = warp / kGroupWarps;
  const int tile = min(warp % kGroupWarps, num_tiles - 1);
  const int size = x.size();
  unsigned stage = first_stage + group;
#pragma unroll 1
  for (int turn = 0; turn < kGroupTurns; ++turn) {
    float of_turn[1][kRows / 2] = {};
    TileScales<kFormat> scales;
    int part = -1;
#pragma unroll 1
    for (int at = turn * kProductGroups + group; at < size; at += kRingConsumers) {
      const std::uint32_t b_from = ring.wait_with_x(stage);
      const std::uint32_t from = b_from + kXBytes<kRows> + tile * kPreparedTileBytes<kFormat>;
      if (part != x.part(at)) {
        part = x.part(at);
        scales.change(from, of_turn);
      }
      multiply_stage<kFormat>(
          from, [&] { return b_from; }, of_turn[0]);
      ring.give_back_share(stage);
      stage += kProductGroups;
    }
    scales.apply(of_turn);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] += of_turn[0][i];
  }
}

// The sums of a unit's tiles.
template <typename S, PreparedFormat kFormat, int kRows>
class ProductSums {
  static constexpr bool kGroups = kByWarpgroups<S, kRows>, kTurns = kByTurns<S, kRows>;

 public:
  // Adds the product of the stages from first_stage on, of x from first_x_stage on, with x.
  __device__ __forceinline__ void multiply(int num_tiles, const StageRing& ring,
                                           unsigned first_stage, const XRingOf<kRows>& x_ring,
                                           unsigned first_x_stage, const XSource& x, int num_rows) {
    if constexpr (kTurns) {
      multiply_by_turns<kFormat, kRows>(num_tiles, ring, first_stage, x, sums_);
    } else if constexpr (kGroups) {
      multiply_by_warpgroups<kFormat, kRows>(num_tiles, ring, first_stage, x_ring, first_x_stage, x,
                                             sums_);
    } else {
      multiply_tiles<kFormat, kRows>(num_tiles, ring, first_stage, x, num_rows, sums_);
    }
  }
  static constexpr int kAtOnce = kGroups ? kGroupSumsAtOnce : 1;

  // use(tile, row of x, first row of the tile, sums): kAtOnce of them, of rows that follow each other.
  template <typename Use>
  __device__ __forceinline__ void add_up(int num_tiles, unsigned first_stage, float* buffer,
                                         const Use& use) const {
    if constexpr (kTurns) {
      reduce_warpgroups<kRows>(sums_, num_tiles, buffer, use);
    } else if constexpr (kGroups) {
      float own[kRows / 2];
      add_turns<kRows>(sums_, own);
      reduce_warpgroups<kRows>(own, num_tiles, buffer, use);
    } else {
      const unsigned turn = (afresh(threadIdx.x) / kWarp - first_stage) % kRingConsumers;
      reduce_warps<kRows>(sums_, num_tiles, turn, buffer,
                          [&](int tile, int row, int tile_row, float sum) {
                            float sums[1] = {sum};
                            use(tile, row, tile_row, sums);
                          });
    }
  }

 private:
  std::conditional_t<kTurns, float[kRows / 2],
                     std::conditional_t<kGroups, GroupSums<kRows>, Accumulators<kRows>>>
      sums_ = {};
};

}  // namespace gapless
