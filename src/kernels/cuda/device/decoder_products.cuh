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
  __device__ int size() const { return end - begin; }
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
  // How many blocks have tiles of fc1.
  __device__ unsigned inner_blocks() const {
    return min(static_cast<unsigned>(inner_tiles_), gridDim.x);
  }

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

// Activations in fragment order, 128 columns of all rows in each slot: kDepth slots for each
// computing warp, which uses them in turn for its stages of the ring.
template <int kRows>
struct XSlots {
  static constexpr int kSlotBytes = kRows * kProductColumns * 2;
  static constexpr int kDepth = kRows == 8 ? 2 : 1;
  static constexpr int kSlots = kDepth * kRingConsumers;
  static_assert(kSlots <= kMaxXSlots);

  std::uint32_t data, full, empty;  // addresses in shared memory

  __device__ void init() const {
    for (int i = 0; i < kSlots; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, 1);
    }
  }
  // The slot of a warp's `step`-th piece.
  __device__ static unsigned slot(unsigned warp, unsigned step) {
    return warp * kDepth + step % kDepth;
  }
  __device__ static int phase(unsigned step) { return step / kDepth & 1; }
};

// Fills them: lane w those of computing warp w.
template <int kRows>
class XProducer {
 public:
  __device__ explicit XProducer(const XSlots<kRows>& slots) : slots_(slots) {}

  // `stage`: the ring's stage of the first chunk.
  __device__ void push(const Bf16* activations, ChunkRange chunks, unsigned stage) {
    using Slots = XSlots<kRows>;
    const unsigned lane = threadIdx.x % kWarp;
    if (lane < kRingConsumers) {
      for (int chunk = chunks.begin + static_cast<int>((lane - stage) % kRingConsumers);
           chunk < chunks.end; chunk += kRingConsumers, ++step_) {
        const unsigned slot = Slots::slot(lane, step_);
        if (step_ >= Slots::kDepth) {
          wait_barrier(slots_.empty + slot * 8, Slots::phase(step_ - Slots::kDepth));
        }
        arrive_expecting(slots_.full + slot * 8, Slots::kSlotBytes);
        copy_bytes_async(slots_.data + slot * Slots::kSlotBytes,
                         activations + chunk * (kRows * kProductColumns), Slots::kSlotBytes,
                         slots_.full + slot * 8);
      }
    }
    __syncwarp();
  }

 private:
  const XSlots<kRows> slots_;
  unsigned step_ = 0;
};

// sums += this warp's stages of num_chunks from `start` on (kTiles tiles each) times its next
// pieces of x.
template <int kTiles, int kRows, typename Ring>
__device__ __forceinline__ void multiply_stages(const Ring& ring, const RingPosition& start,
                                                int num_chunks, const XSlots<kRows>& x,
                                                unsigned& x_step, Accumulators<kRows>& sums) {
  using Slots = XSlots<kRows>;
  constexpr int kSteps = kProductColumns / 16;
  constexpr int kUnroll = kRows <= 16 ? kSteps : 2;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (unsigned chunk = (warp - start.stage) % kRingConsumers;
       chunk < static_cast<unsigned>(num_chunks); chunk += kRingConsumers, ++x_step) {
    const unsigned slot = Slots::slot(warp, x_step);
    const std::uint32_t b_from = x.data + slot * Slots::kSlotBytes + lane * 8;
    std::uint32_t a_from[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      a_from[tile] = ring.granule(start.granule + chunk * kTiles + tile) + lane * 16;
    }
    wait_barrier(x.full + slot * 8, Slots::phase(x_step));
    ring.wait(start.stage + chunk);
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[kTiles][4], b[kRows / 8][2];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) load_shared_16(a[tile], a_from[tile] + step * 512);
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
        load_shared_8(b[n], b_from + n * (8 * kProductColumns * 2) + step * 256);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n) mma_k16(sums[tile][n], a[tile], b[n][0], b[n][1]);
      }
    }
    __syncwarp();
    if (lane == 0) {
      ring.give_back(start.stage + chunk);
      arrive(x.empty + slot * 8);
    }
  }
}

template <int kRows, typename Ring>
__device__ __forceinline__ void multiply_stages(int num_tiles, const Ring& ring,
                                                const RingPosition& start, int num_chunks,
                                                const XSlots<kRows>& x, unsigned& x_step,
                                                Accumulators<kRows>& sums) {
  static_assert(kGroupTiles == 4);
  switch (num_tiles) {
    case 4:
      return multiply_stages<4, kRows>(ring, start, num_chunks, x, x_step, sums);
    case 3:
      return multiply_stages<3, kRows>(ring, start, num_chunks, x, x_step, sums);
    case 2:
      return multiply_stages<2, kRows>(ring, start, num_chunks, x, x_step, sums);
    default:
      return multiply_stages<1, kRows>(ring, start, num_chunks, x, x_step, sums);
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
