// The matrix products of decoder_kernel.cuh: which block does what, and the multiplication.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/fp8_tile.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/stage_ring.cuh"
#include "kernels/cuda/prepared_linear.h"

namespace gapless {

// Activations in fragment order: 128 columns of all rows.
template <int kRows>
inline constexpr int kXBytes = kRows* kProductColumns * 2;

static_assert(kTileRows == kPreparedTileRows && kProductColumns == kPreparedTileColumns);

struct TileRange {
  int begin, end;
};

struct ChunkRange {
  int begin, end;
  __device__ int size() const { return end - begin; }
};

// A group of tiles of the output product and a share of its columns.
struct OutputUnit {
  int index, group, rank;
};

// What one block does.
class DecoderWork {
 public:
  __device__ explicit DecoderWork(const DecoderLaunch& p)
      : qkv_tiles_(3 * p.dim / kTileRows),
        inner_tiles_(p.ff_dim / kTileRows),
        head_tiles_((p.vocab + kTileRows - 1) / kTileRows),
        output_tiles_(p.dim / kTileRows),
        attention_chunks_(p.dim / kProductColumns),
        inner_chunks_(p.ff_dim / kProductColumns) {}

  // Rows of [qkv | fc1], in tiles. Who has one tile more of the first part has it from one end of
  // the grid, of the second from the other.
  __device__ TileRange qkv_tiles() const { return share(qkv_tiles_, blockIdx.x); }
  __device__ TileRange inner_tiles() const {
    const TileRange range = share(inner_tiles_, gridDim.x - 1 - blockIdx.x);
    return {qkv_tiles_ + range.begin, qkv_tiles_ + range.end};
  }
  __device__ TileRange head_tiles() const { return share(head_tiles_, blockIdx.x); }

  // Units of [proj | fc2].
  __device__ OutputUnit first_output() const { return output(blockIdx.x); }
  __device__ bool has(const OutputUnit& unit) const {
    return unit.group * kGroupTiles < output_tiles_;
  }
  __device__ void next(OutputUnit& unit) const { unit = output(unit.index + gridDim.x); }
  __device__ TileRange tiles(const OutputUnit& unit) const {
    const int begin = unit.group * kGroupTiles;
    return {begin, min(begin + kGroupTiles, output_tiles_)};
  }
  __device__ ChunkRange attention_chunks(const OutputUnit& unit) const {
    return chunks(unit.rank, attention_chunks_);
  }
  __device__ ChunkRange inner_chunks(const OutputUnit& unit) const {
    const ChunkRange range = chunks(unit.rank, inner_chunks_);
    return {attention_chunks_ + range.begin, attention_chunks_ + range.end};
  }
  __device__ int output_chunks() const { return attention_chunks_ + inner_chunks_; }

 private:
  __device__ static TileRange share(int tiles, int index) {
    const auto all = static_cast<std::int64_t>(tiles);
    return {static_cast<int>(index * all / gridDim.x),
            static_cast<int>((index + 1) * all / gridDim.x)};
  }
  __device__ static ChunkRange chunks(int rank, int all) {
    return {rank * all / kDecoderColumnRanks, (rank + 1) * all / kDecoderColumnRanks};
  }
  __device__ static OutputUnit output(int index) {
    return {index, index / kDecoderColumnRanks, index % kDecoderColumnRanks};
  }

  int qkv_tiles_, inner_tiles_, head_tiles_, output_tiles_, attention_chunks_, inner_chunks_;
};

// A fragments of prepared tiles in shared memory (prepared_linear.h). `pair`: of steps of 16
// columns.
template <PreparedFormat kFormat, int kTiles>
struct TileReader;

template <int kTiles>
struct TileReader<PreparedFormat::kNative, kTiles> {
  std::uint32_t from;

  __device__ explicit TileReader(std::uint32_t tiles) : from(tiles + threadIdx.x % kWarp * 16) {}
  __device__ void load(int /*pair*/) {}
  __device__ void fragment(int tile, int pair, int step, std::uint32_t (&a)[4]) const {
    load_shared_16(
        a, from + tile * kPreparedTileBytes<PreparedFormat::kNative> + pair * 1024 + step * 512);
  }
};

template <int kTiles>
struct TileReader<PreparedFormat::kFp8, kTiles> {
  static constexpr int kTileBytes = kPreparedTileBytes<PreparedFormat::kFp8>;
  std::uint32_t from;
  std::uint32_t scales[kTiles][2];  // of rows lane / 4 and lane / 4 + 8
  std::uint32_t raw[kTiles][4];     // a pair's

  __device__ explicit TileReader(std::uint32_t tiles) : from(tiles + threadIdx.x % kWarp * 16) {
    const std::uint32_t bytes = tiles + kTileBytes - kPreparedTileRows + threadIdx.x % kWarp / 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      scales[tile][0] = fp8_scale(load_shared_byte(bytes + tile * kTileBytes));
      scales[tile][1] = fp8_scale(load_shared_byte(bytes + tile * kTileBytes + 8));
    }
  }
  __device__ void load(int pair) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_shared_16(raw[tile], from + tile * kTileBytes + pair * 512);
    }
  }
  __device__ void fragment(int tile, int /*pair*/, int step, std::uint32_t (&a)[4]) const {
    unpack_fp8_fragment(raw[tile][step * 2], raw[tile][step * 2 + 1], scales[tile], a);
  }
};

// sums += this warp's stages of num_chunks from first_stage on: 128 columns of x times kTiles
// tiles.
template <PreparedFormat kFormat, int kTiles, int kRows>
__device__ __forceinline__ void multiply_stages(const StageRing& ring, unsigned first_stage,
                                                int num_chunks, Accumulators<kRows>& sums) {
  constexpr int kPairs = kProductColumns / 32;  // of steps
  constexpr int kUnroll = kRows <= 16 ? kPairs : 1;
  constexpr int kStepUnroll = kRows <= 32 || kFormat == PreparedFormat::kFp8 ? 2 : 1;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (unsigned chunk = (warp - first_stage) % kRingConsumers;
       chunk < static_cast<unsigned>(num_chunks); chunk += kRingConsumers) {
    const std::uint32_t place = ring.wait(first_stage + chunk);
    const std::uint32_t b_from = place + lane * 8;
    TileReader<kFormat, kTiles> tiles(place + kXBytes<kRows>);
#pragma unroll kUnroll
    for (int pair = 0; pair < kPairs; ++pair) {
      tiles.load(pair);
#pragma unroll kStepUnroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t a[kTiles][4], b[kRows / 8][2];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) tiles.fragment(tile, pair, step, a[tile]);
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n) {
          load_shared_8(b[n], b_from + n * (8 * kProductColumns * 2) + (pair * 2 + step) * 256);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int n = 0; n < kRows / 8; ++n) mma_k16(sums[tile][n], a[tile], b[n][0], b[n][1]);
        }
      }
    }
    __syncwarp();
    if (lane == 0) ring.give_back(first_stage + chunk);
  }
}

template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void multiply_stages(int num_tiles, const StageRing& ring,
                                                unsigned first_stage, int num_chunks,
                                                Accumulators<kRows>& sums) {
  static_assert(kGroupTiles == 4);
  switch (num_tiles) {
    case 4:
      return multiply_stages<kFormat, 4, kRows>(ring, first_stage, num_chunks, sums);
    case 3:
      return multiply_stages<kFormat, 3, kRows>(ring, first_stage, num_chunks, sums);
    case 2:
      return multiply_stages<kFormat, 2, kRows>(ring, first_stage, num_chunks, sums);
    default:
      return multiply_stages<kFormat, 1, kRows>(ring, first_stage, num_chunks, sums);
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
