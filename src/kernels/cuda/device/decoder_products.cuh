// The matrix products of decoder_blocks.cu: which block does what, the ring of activations, and the
// multiplication.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/granule_ring.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace gapless {

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

// Activations in fragment order, 128 columns of all rows: a slot for each computing warp, which
// uses it for one of its stages of the ring after the other.
template <int kRows>
struct XSlots {
  static constexpr int kSlotBytes = kRows * kProductColumns * 2;
  static constexpr int kSlots = kXFromMemory<kRows> ? 0 : kRingConsumers;

  std::uint32_t data, full, empty;  // addresses in shared memory

  __device__ void init() const {
    for (int i = 0; i < kSlots; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, 1);
    }
  }
  // Of a warp's `step`-th piece.
  __device__ static int phase(unsigned step) { return step & 1; }
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
        if (step_ > 0) wait_barrier(slots_.empty + lane * 8, Slots::phase(step_ - 1));
        arrive_expecting(slots_.full + lane * 8, Slots::kSlotBytes);
        copy_bytes_async(slots_.data + lane * Slots::kSlotBytes,
                         activations + chunk * (kRows * kProductColumns), Slots::kSlotBytes,
                         slots_.full + lane * 8);
      }
    }
    __syncwarp();
  }

 private:
  const XSlots<kRows> slots_;
  unsigned step_ = 0;
};

// The activations of a product: its columns' pieces of 128, one behind the other.
struct XSource {
  const Bf16* activations;
  ChunkRange first, second;  // then these; may be none

  __device__ int size() const { return first.size() + second.size(); }
  __device__ int chunk(int i) const {
    return i < first.size() ? first.begin + i : second.begin + i - first.size();
  }
};

// sums += this warp's stages of the ring from `start` on (kTiles tiles each) times activations that
// announce themselves.
template <int kTiles, typename Ring>
__device__ __forceinline__ void multiply_from_memory(const Ring& ring, const RingPosition& start,
                                                     const XSource& x, int num_rows,
                                                     Accumulators<8>& sums) {
  constexpr int kAtOnce = 2;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool has_row = static_cast<int>(lane / 4) < num_rows;
  const int size = x.size();
  for (int first = static_cast<int>((warp - start.stage) % kRingConsumers); first < size;
       first += kAtOnce * kRingConsumers) {
    MemoryFragments b[kAtOnce];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kRingConsumers;
        b[i].load(x.activations, x.chunk(at), has_row && at < size);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) complete = complete && b[i].complete();
    } while (!complete);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kRingConsumers;
      if (at >= size) break;
      ring.wait(start.stage + at);
#pragma unroll
      for (int step = 0; step < kProductColumns / 16; ++step) {
        const uint4& pair = b[i].pairs[step / 2];
        const std::uint32_t b0 = step % 2 == 0 ? pair.x : pair.z;
        const std::uint32_t b1 = step % 2 == 0 ? pair.y : pair.w;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          std::uint32_t a[4];
          load_shared_16(a,
                         ring.granule(start.granule + at * kTiles + tile) + lane * 16 + step * 512);
          mma_k16(sums[tile][0], a, b0, b1);
        }
      }
      __syncwarp();
      if (lane == 0) ring.give_back(start.stage + at);
    }
  }
}

// The same with activations that come into slots: this warp's next pieces.
template <int kTiles, int kRows, typename Ring>
__device__ __forceinline__ void multiply_from_slots(const Ring& ring, const RingPosition& start,
                                                    int num_chunks, const XSlots<kRows>& x,
                                                    unsigned& x_step, Accumulators<kRows>& sums) {
  using Slots = XSlots<kRows>;
  constexpr int kSteps = kProductColumns / 16;
  constexpr int kUnroll = kRows <= 16 ? kSteps : 2;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (unsigned chunk = (warp - start.stage) % kRingConsumers;
       chunk < static_cast<unsigned>(num_chunks); chunk += kRingConsumers, ++x_step) {
    const std::uint32_t b_from = x.data + warp * Slots::kSlotBytes + lane * 8;
    std::uint32_t a_from[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      a_from[tile] = ring.granule(start.granule + chunk * kTiles + tile) + lane * 16;
    }
    wait_barrier(x.full + warp * 8, Slots::phase(x_step));
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
      arrive(x.empty + warp * 8);
    }
  }
}

// What a warp's products read their activations from.
template <int kRows>
struct XReader {
  XSlots<kRows> slots;
  int num_rows;
  unsigned step = 0;  // of the slots

  template <int kTiles, typename Ring>
  __device__ __forceinline__ void multiply(const Ring& ring, const RingPosition& start,
                                           const XSource& x, Accumulators<kRows>& sums) {
    if constexpr (kXFromMemory<kRows>) {
      multiply_from_memory<kTiles>(ring, start, x, num_rows, sums);
    } else {
      multiply_from_slots<kTiles, kRows>(ring, start, x.size(), slots, step, sums);
    }
  }
  template <typename Ring>
  __device__ __forceinline__ void multiply(int num_tiles, const Ring& ring,
                                           const RingPosition& start, const XSource& x,
                                           Accumulators<kRows>& sums) {
    static_assert(kGroupTiles == 4);
    switch (num_tiles) {
      case 4:
        return multiply<4>(ring, start, x, sums);
      case 3:
        return multiply<3>(ring, start, x, sums);
      case 2:
        return multiply<2>(ring, start, x, sums);
      default:
        return multiply<1>(ring, start, x, sums);
    }
  }
};

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
