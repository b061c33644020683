// Products of some rows in decoder_kernel.cuh, in little code.
//
// A decoder with experts has more phases than others, and what a block executes in a layer must stay in the instruction cache: where
// it did not, each piece of code was fetched anew in each layer, and a layer of one row took half as long again. So all numbers of
// tiles have one code here, and the sums of all tiles are added up over the warps in a loop.
#pragma once

#include <cstdint>

#include "kernels/cuda/decoder_work.h"
#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/decoder_products.cuh"
#include "kernels/cuda/device/fp8_tile.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/stage_ring.cuh"

namespace gapless {

// Where a lane finds its rows, of each eight one: the first columns of its B fragments (activations.cuh) from `numbers` on; -1: there
// is none.
template <int kBlocks>
struct LaneRows {
  const Bf16* numbers;
  int at[kBlocks];
  int num_blocks;  // that have rows
};

// B fragments of a row for two steps of 16 columns, as MemoryFragments has them.
template <int kRows>
__device__ __forceinline__ uint4 load_pair_of_steps(const Bf16* from) {
  if constexpr (kXFromMemory<kRows>) {
    return load_announced(from);
  } else {
    const auto* two = reinterpret_cast<const uint2*>(from);
    const uint2 first = __ldcg(two), second = __ldcg(two + 32);
    return uint4{first.x, first.y, second.x, second.y};
  }
}

// A fragments of up to four tiles.
template <PreparedFormat kFormat>
struct CompactTiles {
  static constexpr int kTileBytes = kPreparedTileBytes<kFormat>;
  static constexpr bool kIsFp8 = kFormat == PreparedFormat::kFp8;
  // Of tiles that are not there zeros.
  std::uint32_t raw[kGroupTiles][4] = {};
  std::uint32_t fragments[kGroupTiles][4] = {};

  // Of steps 2 * pair and + 1.
  __device__ __forceinline__ void load_pair(std::uint32_t tiles, int pair, int num_tiles) {
#pragma unroll
    for (int tile = 0; kIsFp8 && tile < kGroupTiles; ++tile) {
      if (tile < num_tiles) load_shared_16(raw[tile], tiles + tile * kTileBytes + pair * 512);
    }
  }
  __device__ __forceinline__ void load_step(std::uint32_t tiles, int pair, int step,
                                            int num_tiles) {
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      if constexpr (kIsFp8) {
        unpack_fp8_fragment(raw[tile][step * 2], raw[tile][step * 2 + 1], fragments[tile]);
      } else if (tile < num_tiles) {
        load_shared_16(fragments[tile], tiles + tile * kTileBytes + pair * 1024 + step * 512);
      }
    }
  }
};

// W x of a unit, W from the ring and x from memory: up to 8 * kBlocks rows, whose activations are asked for before they are needed.
template <PreparedFormat kFormat, int kRows, int kBlocks>
class CompactProduct {
  static constexpr int kPairs = kProductColumns / 32;  // of steps
  static constexpr int kAtOnce = 2 / kBlocks;          // stages whose activations a warp has
  static constexpr int kChunkNumbers = kRows * kProductColumns;

 public:
  // The unit's stages begin with first_stage, `chunks` for all warps.
  __device__ __forceinline__ void ask(const LaneRows<kBlocks>& rows, unsigned first_stage,
                                      int chunks) {
    rows_ = rows;
    first_stage_ = first_stage;
    chunks_ = chunks;
    at_ = static_cast<int>((threadIdx.x / kWarp - first_stage) % kRingConsumers);
    load();
  }

  // Starts over with `sums` and multiplies what was asked for.
  __device__ __forceinline__ void multiply(const StageRing& ring, int num_tiles) {
#pragma unroll
    for (auto& tile : sums_) {
#pragma unroll
      for (auto& block : tile) {
#pragma unroll
        for (float& sum : block) sum = 0;
      }
    }
    turn_ = (threadIdx.x / kWarp - first_stage_) % kRingConsumers;
    is_narrow_ = kBlocks == 1 || rows_.num_blocks == 1;
    int scale_bytes[kGroupTiles][2] = {};
    bool is_first = true;
#pragma unroll 1
    while (at_ < chunks_) {
      while (!is_complete()) load();
      __syncwarp();
#pragma unroll 1
      for (int i = 0; i < kAtOnce && at_ < chunks_; ++i, at_ += kRingConsumers) {
        const std::uint32_t place = ring.wait(first_stage_ + at_);
        if constexpr (kFormat == PreparedFormat::kFp8) {
          if (is_first) load_scales(place, num_tiles, scale_bytes);
          is_first = false;
        }
        multiply_stage(place, num_tiles);
        ring.give_back(first_stage_ + at_);
#pragma unroll
        for (int pair = 0; kAtOnce > 1 && pair < kPairs; ++pair) {
          x_[0][0][pair] = x_[kAtOnce - 1][0][pair];
        }
      }
      if (at_ < chunks_) load();
    }
    if constexpr (kFormat == PreparedFormat::kFp8) apply_scales(scale_bytes);
  }

  // Adds up over the warps, as reduce_warps does: use(tile, row, row of the tile, sum), by whole warps that share the tile.
  // Leaves no sums. The next unit's activations may have been asked for. `buffer`: kReduceBytes, free again after the call.
  template <typename Use>
  __device__ __forceinline__ void reduce(int num_tiles, float* buffer, const Use& use) {
    const int lane = threadIdx.x % kWarp;
    float* mine = buffer + turn_ * kReduceRows * kReducePitch;
    // Two eights of columns at once: of two tiles, or of one tile all rows.
    const bool is_narrow = kBlocks == 1 || is_narrow_;
#pragma unroll 1
    for (int first = 0; first < num_tiles; first += is_narrow ? 2 : 1) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float c[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          c[k] = i == 0 ? sums_[0][0][k] : is_narrow ? sums_[1][0][k] : sums_[0][kBlocks - 1][k];
        }
        float* to = mine + (i * 8 + (lane % 4) * 2) * kReducePitch + lane / 4;
        to[0] = c[0];
        to[kReducePitch] = c[1];
        to[8] = c[2];
        to[kReducePitch + 8] = c[3];
      }
      named_barrier(1, kProductThreads);
      const unsigned thread = afresh(threadIdx.x);
      const int column = thread / kTileRows, tile_row = thread % kTileRows;
      const float sum = sum_over_warps(buffer, column, tile_row);
      const int tile = first + (is_narrow ? column / 8 : 0);
      if (tile < num_tiles) use(tile, is_narrow ? column % 8 : column, tile_row, sum);
      named_barrier(1, kProductThreads);
      shift(is_narrow ? 2 : 1);
    }
  }

 private:
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = at_ + i * kRingConsumers;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const Bf16* from = rows_.numbers + rows_.at[block] + chunk * kChunkNumbers;
        const bool exists = chunk < chunks_ && rows_.at[block] >= 0;
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          x_[i][block][pair] = exists ? load_pair_of_steps<kRows>(from + pair * 256) : uint4{};
        }
      }
    }
  }

  // A half word of ones, the largest there is, has not been written.
  __device__ __forceinline__ bool is_complete() const {
    if constexpr (!kXFromMemory<kRows>) return true;
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (const uint4& pair : x_[i][block]) {
          largest = __vmaxu2(__vmaxu2(largest, pair.x), __vmaxu2(pair.y, __vmaxu2(pair.z, pair.w)));
        }
      }
    }
    return is_written(largest, Bf16{});
  }

  __device__ __forceinline__ void multiply_stage(std::uint32_t place, int num_tiles) {
    const std::uint32_t from = place + threadIdx.x % kWarp * 16;
    CompactTiles<kFormat> tiles;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      tiles.load_pair(from, pair, num_tiles);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        tiles.load_step(from, pair, step, num_tiles);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          if (block > 0 && block >= rows_.num_blocks) break;
          const uint4& both = x_[0][block][pair];
#pragma unroll
          for (int tile = 0; tile < kGroupTiles; ++tile) {
            mma_of<kFormat>(sums_[tile][block], tiles.fragments[tile], step == 0 ? both.x : both.z,
                            step == 0 ? both.y : both.w);
          }
        }
      }
    }
  }

  // The bytes of rows lane / 4 and lane / 4 + 8 (fp8_scale_byte).
  __device__ __forceinline__ static void load_scales(std::uint32_t place, int num_tiles,
                                                     int (&bytes)[kGroupTiles][2]) {
    const std::uint32_t from = scale_byte_of_lane(place);
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      if (tile >= num_tiles) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bytes[tile][half] = load_shared_byte(from + tile * kPreparedTileBytes<kFormat> + half * 8);
      }
    }
  }
  __device__ __forceinline__ void apply_scales(const int (&bytes)[kGroupTiles][2]) {
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = fp8_scale(static_cast<std::uint8_t>(bytes[tile][half]));
#pragma unroll
        for (auto& block : sums_[tile]) block[half * 2] *= scale, block[half * 2 + 1] *= scale;
      }
    }
  }

  // Later tiles' sums take the place of the first ones.
  __device__ __forceinline__ void shift(int tiles) {
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float next = tile + 1 < kGroupTiles ? sums_[tile + 1][block][k] : 0.0f;
          const float second = tile + 2 < kGroupTiles ? sums_[tile + 2][block][k] : 0.0f;
          sums_[tile][block][k] = tiles == 1 ? next : second;
        }
      }
    }
  }

  LaneRows<kBlocks> rows_;
  unsigned first_stage_ = 0;
  int chunks_ = 0, at_ = 0;
  unsigned turn_ = 0;
  bool is_narrow_ = false;
  uint4 x_[kAtOnce][kBlocks][kPairs];
  float sums_[kGroupTiles][kBlocks][4];
};

}  // namespace gapless
