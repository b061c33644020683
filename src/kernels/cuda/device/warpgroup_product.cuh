// Products of 16 to 64 rows of x in decoder_kernel.cuh by warpgroups (wgmma.cuh), on paths that have them:
// a warp holds one of a unit's four tiles as the M operand, and x is the N operand, in shared memory.
//
// Every second stage belongs to a warpgroup, all four warps of which work on it. So a stage is in use a
// quarter as long as if one warp did, and the ring has room for what is on its way; and there are sums
// of two warpgroups to add up, not of eight warps.
//
// The order of sums is that of row_product.cuh: every eighth piece of 128 columns has sums of its own,
// of which a warpgroup has four.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/decoder_products.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/x_ring.cuh"
#include "kernels/cuda/expert_route.h"

namespace gapless {

// Not where there are experts: each multiplies the rows that chose it, and those lie apart.
template <typename S, int kRows>
inline constexpr bool kByWarpgroups =
    cuda::kPath.has_warpgroups && !S::kHasExperts && !kXFromMemory<kRows>;

// Whether a thread has sums of one of its turns at a time: those of more rows are as many as it has registers for. It needs the
// stages in another order, and has the activations in them: a ring of so many would be too large for the attention's stages.
template <typename S, int kRows>
inline constexpr bool kByTurns = kByWarpgroups<S, kRows>&& kRows > 64;
template <typename S, int kRows>
inline constexpr bool kHasXRing = kByWarpgroups<S, kRows> && !kByTurns<S, kRows>;

// Rows of a launch, at most; of more than 64 where a device has so many multiprocessors and units are even. Where registers are not
// exchanged, the sums of 64 rows leave none for anything else: one launch of them takes as long as two of 32.
template <typename S>
inline constexpr int kMostRows = !kHasRegisterExchange                       ? 32
                                 : kByWarpgroups<S, 64> && !S::kIsSequential ? kMaxLaunchRows
                                                                             : 64;

inline constexpr int kProductGroups = 2;
inline constexpr int kGroupWarps = kProductWarps / kProductGroups;
inline constexpr int kGroupTurns = kRingConsumers / kProductGroups;  // of eight, a warpgroup's
static_assert(kGroupWarps == kGroupTiles);

// Whether groups of warps multiply the rows of passes (pass_product.cuh), which lie in shared memory then. What they take from the ring is
// worth it where weights have 8 bits: there computing warps have half the time for a stage.
template <typename S, PreparedFormat kFormat, int kRows>
inline constexpr bool kHasPassRows =
    S::kHasExperts&& kFormat == PreparedFormat::kFp8 && !kXFromMemory<kRows> && kRows <= 32;
template <int kRows>
inline constexpr int kPassRowBytes = kPassRows<kRows, PreparedFormat::kFp8>*
    kMaxDecoderDim<ExpertsDecoder>* static_cast<int>(sizeof(Bf16));

// Warps that may work on a stage together.
template <typename S, PreparedFormat kFormat, int kRows>
inline constexpr int kStageSharers =
    kByWarpgroups<S, kRows> || kHasPassRows<S, kFormat, kRows> ? kGroupWarps : 1;
static_assert(kStageSharers<ParallelDecoder, PreparedFormat::kNative, 32> == 1 || kHasCopyEngine,
              "arrive() with a count");

// Room for activations in a stage: warpgroups have a ring of its own for them.
template <typename S, int kRows>
inline constexpr int kStageXBytes = kHasXRing<S, kRows> ? 0 : kXBytes<kRows>;
template <int kRows>
using XRingOf = XRing<kXBytes<kRows>>;
// Behind the ring of stages: that of activations, or the rows of a pass.
template <typename S, PreparedFormat kFormat, int kRows>
inline constexpr int kXRingBytes = kHasXRing<S, kRows>               ? XRingOf<kRows>::kBytes
                                   : kHasPassRows<S, kFormat, kRows> ? kPassRowBytes<kRows>
                                                                     : 0;

template <typename S, PreparedFormat kFormat, int kRows>
using ActivationsOf = Activations<kFormat, kRows, kByWarpgroups<S, kRows>>;

// Of each of a warpgroup's turns, a thread's: two rows of its warp's tile, a quarter of the rows of x.
template <int kRows>
using GroupSums = float[kGroupTurns][kRows / 2];

// The powers of two of a tile's rows, as RowScales has them for several.
template <PreparedFormat kFormat>
struct TileScales {
  template <typename Sums>
  __device__ __forceinline__ void change(std::uint32_t /*tile*/, Sums& /*sums*/) {}
  template <typename Sums>
  __device__ __forceinline__ void apply(Sums& /*sums*/) const {}
};

template <>
struct TileScales<PreparedFormat::kFp8> {
  int bytes[2] = {};  // fp8_scale_byte of rows lane / 4 and lane / 4 + 8

  template <int kTurns, int kCount>
  __device__ __forceinline__ void change(std::uint32_t tile, float (&sums)[kTurns][kCount]) {
    const std::uint32_t from = scale_byte_of_lane(tile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int byte = load_shared_byte(from + half * 8);
      multiply(sums, half, fp8_scale_change(bytes[half], byte));
      bytes[half] = byte;
    }
  }
  template <int kTurns, int kCount>
  __device__ __forceinline__ void apply(float (&sums)[kTurns][kCount]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply(sums, half, fp8_scale(static_cast<std::uint8_t>(bytes[half])));
    }
  }

 private:
  template <int kTurns, int kCount>
  static __device__ __forceinline__ void multiply(float (&sums)[kTurns][kCount], int half,
                                                  float factor) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        sums[turn][i + half * 2] *= factor;
        sums[turn][i + half * 2 + 1] *= factor;
      }
    }
  }
};

// sums += a stage's tile, which is at `from`, times its activations, which are at find_x(): asked for when the tile is in registers.
template <PreparedFormat kFormat, int kCount, typename FindX>
__device__ __forceinline__ void multiply_stage(std::uint32_t from, const FindX& find_x,
                                               float (&sums)[kCount]) {
  constexpr int kPairs = kProductColumns / 32;  // of steps of 16 columns
  constexpr int kAtomBytes = 8 * 8 * sizeof(Bf16);
  TileReader<kFormat, 1> reader(from);
  std::uint32_t a[kPairs * 2][4];
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    reader.load(pair);
    reader.fragment(0, pair, 0, a[pair * 2]);
    reader.fragment(0, pair, 1, a[pair * 2 + 1]);
  }
  const std::uint64_t b = wgmma_operand(find_x(), kAtomBytes, 8 * kProductColumns * sizeof(Bf16));
  wgmma_hand_over(sums);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kPairs * 2; ++step) {
    wgmma_add<kFormat == PreparedFormat::kFp8>(sums, a[step],
                                               wgmma_moved(b, step * 2 * kAtomBytes));
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hand_over(sums);
}

// sums += this warpgroup's stages of the ring from first_stage on, times x, whose stages begin with
// first_x_stage. What a warp without a tile of its own gets, nobody uses.
template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void multiply_by_warpgroups(int num_tiles, const StageRing& ring,
                                                       unsigned first_stage,
                                                       const XRingOf<kRows>& x_ring,
                                                       unsigned first_x_stage, const XSource& x,
                                                       GroupSums<kRows>& sums) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int tile = min(warp % kGroupWarps, num_tiles - 1);
  const int size = x.size();
  TileScales<kFormat> scales;
  int part = -1;
  for (int first = warp / kGroupWarps; first < size; first += kRingConsumers) {
#pragma unroll
    for (int turn = 0; turn < kGroupTurns; ++turn) {
      const int at = first + turn * kProductGroups;
      if (at >= size) break;
      const unsigned stage = first_stage + static_cast<unsigned>(at);
      const unsigned x_stage = first_x_stage + static_cast<unsigned>(at);
      const std::uint32_t from = ring.wait(stage) + tile * kPreparedTileBytes<kFormat>;
      if (part != x.part(at)) {
        part = x.part(at);
        scales.change(from, sums);
      }
      multiply_stage<kFormat>(
          from, [&] { return x_ring.wait(x_stage); }, sums[turn]);
      ring.give_back_share(stage);
      if (threadIdx.x % kWarp == 0) x_ring.give_back(x_stage);
    }
  }
  scales.apply(sums);
}

// Sums that a thread adds up at once: neighbouring rows of a tile.
inline constexpr int kGroupSumsAtOnce = 4;
__device__ __forceinline__ int tile_of_group_sums(unsigned thread) {
  return static_cast<int>(thread / (kProductThreads / kGroupTiles));
}
__device__ __forceinline__ int first_row_of_group_sums(unsigned thread) {
  return static_cast<int>(thread * kGroupSumsAtOnce % kTileRows);
}

// reduce_warps for the sums of warpgroups over all their turns: use(tile, row of x, first row of the tile, sums).
// `buffer`: kReduceBytes, free again after the call.
template <int kRows, typename Use>
__device__ __forceinline__ void reduce_warpgroups(const float (&own)[kRows / 2], int num_tiles,
                                                  float* buffer, const Use& use) {
  constexpr int kPiece = kReduceRows * kReducePitch;  // of a warp: its tile, so many rows of x
  // Addresses of what the sums become are computed only now, when there are registers for them.
  const unsigned thread = always_afresh(threadIdx.x), lane = thread % kWarp;
  float* mine = buffer + thread / kWarp * kPiece;
  const int tile = tile_of_group_sums(thread), tile_row = first_row_of_group_sums(thread);
  const int row = static_cast<int>(thread * kGroupSumsAtOnce / kTileRows % kReduceRows);
  const float4* from =
      reinterpret_cast<const float4*>(buffer + tile * kPiece + row * kReducePitch + tile_row);
#pragma unroll
  for (int first = 0; first < kRows; first += kReduceRows) {
#pragma unroll
    for (int block = 0; block < kReduceRows / 8; ++block) {
      const float* c = own + (first / 8 + block) * 4;
      float* to = mine + (block * 8 + (lane % 4) * 2) * kReducePitch + lane / 4;
      to[0] = c[0];
      to[kReducePitch] = c[1];
      to[8] = c[2];
      to[kReducePitch + 8] = c[3];
    }
    named_barrier(1, kProductThreads);
    static_assert(kGroupTiles * kReduceRows * kTileRows == kProductThreads * kGroupSumsAtOnce);
    if (tile < num_tiles) {
      const float4 even = from[0], odd = from[kGroupWarps * kPiece / 4];
      float both[kGroupSumsAtOnce] = {even.x + odd.x, even.y + odd.y, even.z + odd.z,
                                      even.w + odd.w};
      use(tile, first + row, tile_row, both);
    }
    named_barrier(1, kProductThreads);
  }
}

// The sums over all turns.
template <int kRows>
__device__ __forceinline__ void add_turns(const GroupSums<kRows>& sums, float (&own)[kRows / 2]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    own[i] = 0;
#pragma unroll
    for (int turn = 0; turn < kGroupTurns; ++turn) own[i] += sums[turn][i];
  }
}

}  // namespace gapless
