// The matrix products of decoder_blocks.cu: which block does what, the ring of activations, and the
// multiplication.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/granule_ring.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace gapless {

inline constexpr int kMaxXSlots = 16;

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

// A ring of activations in fragment order: 128 columns of all rows in each slot.
template <int kRows>
struct XRing {
  static constexpr int kSlotBytes = kRows * kProductColumns * 2;
  static constexpr int kSlots = kRows == 8 ? 16 : kRows == 16 ? 8 : 4;
  static_assert(kSlots <= kMaxXSlots);

  std::uint32_t data, full, empty;  // addresses in shared memory

  __device__ void init() const {
    for (int i = 0; i < kSlots; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, kProductWarps);
    }
  }
};

// One thread fills it.
template <int kRows>
class XProducer {
 public:
  __device__ explicit XProducer(const XRing<kRows>& ring) : ring_(ring) {}

  __device__ void push(const Bf16* activations, ChunkRange chunks) {
    using Ring = XRing<kRows>;
    for (int chunk = chunks.begin; chunk < chunks.end; ++chunk, ++step_) {
      const int slot = step_ % Ring::kSlots;
      if (step_ >= Ring::kSlots) {
        wait_barrier(ring_.empty + slot * 8, (step_ / Ring::kSlots - 1) & 1);
      }
      arrive_expecting(ring_.full + slot * 8, Ring::kSlotBytes);
      copy_bytes_async(ring_.data + slot * Ring::kSlotBytes,
                       activations + chunk * (kRows * kProductColumns), Ring::kSlotBytes,
                       ring_.full + slot * 8);
    }
  }

 private:
  const XRing<kRows> ring_;
  int step_ = 0;
};

// sums += the next num_chunks stages of the ring (num_tiles tiles each) times the next slots of x.
template <int kRows>
__device__ __forceinline__ void multiply_chunks(const GranuleRing& ring, RingCursor& cursor,
                                                const XRing<kRows>& x_ring, int& x_step,
                                                int num_tiles, int num_chunks,
                                                Accumulators<kRows>& sums) {
  using Ring = XRing<kRows>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int chunk = 0; chunk < num_chunks; ++chunk, ++x_step) {
    const int slot = x_step % Ring::kSlots;
    wait_barrier(x_ring.full + slot * 8, x_step / Ring::kSlots & 1);
    std::uint32_t b[kRows / 8][2];
    const std::uint32_t x = x_ring.data + slot * Ring::kSlotBytes + warp * 256 + lane * 8;
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) load_shared_8(b[n], x + n * (8 * kProductColumns * 2));
    cursor.wait(ring);
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      if (tile >= num_tiles) break;
      std::uint32_t a[4];
      load_shared_16(a, ring.granule(cursor.granule + tile) + warp * 512 + lane * 16);
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) mma_k16(sums[tile][n], a, b[n][0], b[n][1]);
    }
    __syncwarp();
    if (lane == 0) {
      cursor.give_back(ring);
      arrive(x_ring.empty + slot * 8);
    }
    cursor.advance(ring, num_tiles);
  }
}

// values (the residual) += the output product of one row, from column `at` on.
__device__ __forceinline__ void add_output(const DecoderLaunch& p, const DecoderLayer& layer,
                                           int rows, int row, int at, float (&values)[kVector]) {
  float sums[kVector] = {};
#pragma unroll
  for (int rank = 0; rank < kDecoderColumnRanks; ++rank) {
    const auto* from = reinterpret_cast<const float4*>(
        p.sums + (std::int64_t{rank} * rows + row) * p.dim + at);
    const float4 low = __ldcg(from), high = __ldcg(from + 1);
    const float part[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] += part[i];
  }
  float proj[kVector], fc2[kVector];
  load_vector(layer.proj_bias + at, proj);
  load_vector(layer.fc2_bias + at, fc2);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] += sums[i] + (proj[i] + fc2[i]);
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
