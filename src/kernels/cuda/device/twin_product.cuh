// Twins: two units of a block that multiply the same activations, in decoder_kernel.cuh. Each of two
// warpgroups multiplies one of them, by the same slots of activations.
//
// The activations come from the second-level cache, and up to 32 rows of wide blocks what a stage waits for is its slot
// (docs/kernels_decode.md). Units of their own bring them twice.
//
// A unit's stages and those of its twin alternate, so every second stage is a warpgroup's as elsewhere. A warpgroup meets all chunks of
// its unit, so a thread has the sums of all eight turns, and adds them up as two warpgroups' are: the bits are those of a single unit.
#pragma once

#include "kernels/cuda/device/warpgroup_product.cuh"

namespace gapless {

// The tiles of a unit and of its twin.
struct Twins {
  TileRange of[kProductGroups];

  __device__ int largest() const { return max(of[0].size(), of[1].size()); }
};

// Of a unit that has a twin; `unit` becomes that.
__device__ __forceinline__ Twins take_twins(const DecoderWork& work, PhaseKind kind,
                                            ProductUnit& unit) {
  Twins twins;
  twins.of[0] = work.tiles_of(kind, unit);
  work.next(kind, unit);
  twins.of[1] = work.tiles_of(kind, unit);
  return twins;
}

// The sums of this warpgroup's unit.
template <PreparedFormat kFormat, int kRows>
class TwinSums {
 public:
  // Adds the product of both units' stages from first_stage on, of x from first_x_stage on, with x.
  __device__ __forceinline__ void multiply(const Twins& twins, const StageRing& ring,
                                           unsigned first_stage, const XRingOf<kRows>& x_ring,
                                           unsigned first_x_stage, const XSource& x) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, group = warp / kGroupWarps;
    const int num_tiles = group == 0 ? twins.of[0].size() : twins.of[1].size();
    const int tile = min(warp % kGroupWarps, num_tiles - 1);
    const int size = x.size();
    float sums[kRingConsumers][kRows / 2] = {};
    TileScales<kFormat> scales;
    int part = -1;
    for (int first = 0; first < size; first += kRingConsumers) {
#pragma unroll
      for (int turn = 0; turn < kRingConsumers; ++turn) {
        const int at = first + turn;
        if (at >= size) break;
        const unsigned stage = first_stage + static_cast<unsigned>(at * kProductGroups + group);
        const unsigned x_stage = first_x_stage + static_cast<unsigned>(at);
        const std::uint32_t from = ring.wait(stage) + tile * kPreparedTileBytes<kFormat>;
        if (part != x.part(at)) {
          part = x.part(at);
          scales.change(from, sums);
        }
        multiply_stage<kFormat>(
            from, [&] { return x_ring.wait(x_stage); }, sums[turn]);
        ring.give_back_share(stage);
        if (threadIdx.x % kWarp == 0) x_ring.give_back(x_stage, 1);
      }
    }
    scales.apply(sums);
    // Of two warpgroups one would have the even turns and one the odd.
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      float even = 0, odd = 0;
#pragma unroll
      for (int turn = 0; turn < kRingConsumers; turn += 2) {
        even += sums[turn][i];
        odd += sums[turn + 1][i];
      }
      sums_[i] = even + odd;
    }
  }

  // use(unit, tile, row of x, first row of the tile, sums) for both units, as ProductSums::add_up.
  template <typename Use>
  __device__ __forceinline__ void add_up(const Twins& twins, float* buffer, const Use& use) const {
    exchange_sums<kRows>(sums_, buffer, [&](int tile, int row, int tile_row, const float4* from) {
#pragma unroll
      for (int unit = 0; unit < kProductGroups; ++unit) {
        if (tile >= twins.of[unit].size()) continue;
        const float4 four = from[unit * kOtherGroup];
        float sums[kGroupSumsAtOnce] = {four.x, four.y, four.z, four.w};
        use(unit, tile, row, tile_row, sums);
      }
    });
  }

 private:
  float sums_[kRows / 2];
};

}  // namespace gapless
