// The experts' products in decoder_kernel.cuh (expert_route.h says who computes what).
//
// A pass' rows are some of the step's, so their activations are read from memory, each lane those of its own row: they are B
// fragments there already (activations.cuh). Weights come through the ring. Products add up as all products of the kernel do,
// and what a row's experts make is kept apart until its norm adds it up: a row's bits are the same whoever is in its passes.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_rows.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/expert_route.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Chunks of 128 columns that a product of an expert has, and tiles.
struct ExpertProduct {
  int chunks, tiles;
};
__device__ __forceinline__ ExpertProduct expert_up(const DecoderLaunch& p) {
  return {p.dim / kProductColumns, 2 * p.experts.inner / kTileRows};
}
__device__ __forceinline__ ExpertProduct expert_down(const DecoderLaunch& p) {
  return {p.experts.inner / kProductColumns, p.dim / kTileRows};
}

// Who reads a layer's route: computing warps, and those that move data and count stages: the streaming warp and, where it
// brings activations, the x warp. These do so in layers with experts only: in others they may be a layer ahead, and computing warps
// arrive for them.
template <int kRows>
inline constexpr int kRouteCounters = kXFromMemory<kRows> ? 1 : 2;

// One thread of who reads it.
__device__ __forceinline__ void leave_layer(const DecoderBlockState<ExpertsDecoder>& block) {
  arrive(shared_address(&block.small.experts.layer_read));
}

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

// Eights of rows in a pass: its product's columns come in these.
template <int kRows>
struct PassShape {
  static constexpr int kBlocks = kPassRows<kRows> / 8;
  // Their sums lie in parts that are added up over the warps one after the other.
  static constexpr int kPartBlocks = kBlocks < 2 ? kBlocks : 2;
  static constexpr int kPartRows = 8 * kPartBlocks;
  static constexpr int kParts = kBlocks / kPartBlocks;
  static constexpr int kPairs = kProductColumns / 32;  // of steps
};
template <int kRows>
struct PassSums {
  Accumulators<PassShape<kRows>::kPartRows> parts[PassShape<kRows>::kParts];
};

// Where a lane finds its rows of a pass, and their B fragments of a chunk.
template <int kRows>
struct PassRows {
  using Shape = PassShape<kRows>;
  static constexpr int kChunkNumbers = kRows * kProductColumns;

  const Bf16* numbers;
  int at[Shape::kBlocks];  // of its row, in the first chunk; -1: there is none
  int num_blocks;          // that have rows

  // Of `numbers`, activations of all rows; first_chunk(pair): where the pair's begin.
  template <typename FirstChunk>
  __device__ __forceinline__ PassRows(const ExpertRoute& route, const ExpertPass& pass,
                                      const Bf16* numbers, const FirstChunk& first_chunk)
      : numbers(numbers), num_blocks((pass.num_rows + 7) / 8) {
    const int lane = always_afresh(threadIdx.x) % kWarp;
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      const int i = block * 8 + lane / 4;
      at[block] = -1;
      if (i >= pass.num_rows) continue;
      const int pair = route.pairs[pass.first + i];
      at[block] = first_chunk(pair) * kChunkNumbers +
                  fragment_index<kRows>(ExpertRoute::row_of(pair), lane % 4 * 2);
    }
  }
};

template <int kRows>
struct PassFragments {
  using Shape = PassShape<kRows>;
  uint4 pairs[Shape::kBlocks][Shape::kPairs];  // of a pair of steps, as MemoryFragments has them

  __device__ __forceinline__ void load(const PassRows<kRows>& rows, int chunk, bool exists) {
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      const Bf16* from = rows.numbers + rows.at[block] + chunk * PassRows<kRows>::kChunkNumbers;
#pragma unroll
      for (int i = 0; i < Shape::kPairs; ++i) {
        uint4& pair = pairs[block][i];
        pair = uint4{};
        if (!exists || rows.at[block] < 0) continue;
        pair = load_pair_of_steps<kRows>(from + i * 256);
      }
    }
  }
  __device__ __forceinline__ bool complete() const {
    bool result = true;
    if constexpr (kXFromMemory<kRows>) {
#pragma unroll
      for (const uint4& pair : pairs[0]) result = result && all_written<Bf16>(pair);
    }
    return result;
  }
};

// sums += one stage, kTiles tiles times 128 columns of x.
template <PreparedFormat kFormat, int kTiles, int kRows>
__device__ __forceinline__ void multiply_stage_of_pass(std::uint32_t place,
                                                       const PassFragments<kRows>& x,
                                                       int num_blocks, PassSums<kRows>& sums) {
  using Shape = PassShape<kRows>;
  TileReader<kFormat, kTiles> tiles(place);
#pragma unroll
  for (int pair = 0; pair < Shape::kPairs; ++pair) {
    tiles.load(pair);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) tiles.fragment(tile, pair, step, a[tile]);
#pragma unroll
      for (int block = 0; block < Shape::kBlocks; ++block) {
        if (block >= num_blocks) break;
        const uint4& both = x.pairs[block][pair];
        auto& part = sums.parts[block / Shape::kPartBlocks];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma_of<kFormat>(part[tile][block % Shape::kPartBlocks], a[tile],
                          step == 0 ? both.x : both.z, step == 0 ? both.y : both.w);
        }
      }
    }
  }
}

// sums += this warp's stages of the ring from first_stage on, `chunks` for all warps, times a pass' rows.
template <PreparedFormat kFormat, int kTiles, int kRows>
__device__ __forceinline__ void multiply_tiles_of_pass(const StageRing& ring, unsigned first_stage,
                                                       const PassRows<kRows>& rows, int chunks,
                                                       PassSums<kRows>& sums) {
  constexpr int kAtOnce = PassShape<kRows>::kBlocks == 1 ? 2 : 1;  // pieces of x
  const unsigned warp = threadIdx.x / kWarp;
  RowScales<kFormat, kTiles> scales;
  bool is_first = true;
  for (int first = static_cast<int>((warp - first_stage) % kRingConsumers); first < chunks;
       first += kAtOnce * kRingConsumers) {
    PassFragments<kRows> pieces[kAtOnce];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kRingConsumers;
        pieces[i].load(rows, at, at < chunks);
        complete = complete && pieces[i].complete();
      }
    } while (!complete);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kRingConsumers;
      if (at >= chunks) break;
      const std::uint32_t place = ring.wait(first_stage + at);
      // All sums are zeros then.
      if (is_first) scales.change(place, sums.parts[0]);
      is_first = false;
      multiply_stage_of_pass<kFormat, kTiles, kRows>(place, pieces[i], rows.num_blocks, sums);
      ring.give_back(first_stage + at);
    }
  }
#pragma unroll
  for (auto& part : sums.parts) scales.apply(part);
}

template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void multiply_pass(int num_tiles, const StageRing& ring,
                                              unsigned first_stage, const PassRows<kRows>& rows,
                                              int chunks, PassSums<kRows>& sums) {
  static_assert(kGroupTiles == 4);
  switch (num_tiles) {
    case 4:
      return multiply_tiles_of_pass<kFormat, 4, kRows>(ring, first_stage, rows, chunks, sums);
    case 3:
      return multiply_tiles_of_pass<kFormat, 3, kRows>(ring, first_stage, rows, chunks, sums);
    case 2:
      return multiply_tiles_of_pass<kFormat, 2, kRows>(ring, first_stage, rows, chunks, sums);
    default:
      return multiply_tiles_of_pass<kFormat, 1, kRows>(ring, first_stage, rows, chunks, sums);
  }
}

// One of an expert layer's two products, by the computing warps: this block's units of the passes. `numbers` and first_chunk:
// as PassRows has them. use(pair, column of the expert's matrix, sum) is called by whole warps, with pair -1 where a pass has no
// row. Returns the ring's next stage.
template <PreparedFormat kFormat, int kRows, typename FirstChunk, typename Use>
__device__ __forceinline__ unsigned multiply_passes(const DecoderBlockState<ExpertsDecoder>& block,
                                                    const ExpertProduct& product,
                                                    const ExpertShare& share, const Bf16* numbers,
                                                    unsigned stage, const FirstChunk& first_chunk,
                                                    const Use& use) {
  const ExpertRoute& route = block.small.experts.route;
  for (ExpertUnits units(share, product.tiles); units.has(); units.next()) {
    const ExpertPass pass = route.passes[units.pass()];
    const PassRows<kRows> rows(route, pass, numbers, first_chunk);
    PassSums<kRows> sums = {};
    const int num_tiles = units.size(), first_tile = units.tile();
    multiply_pass<kFormat, kRows>(num_tiles, block.ring, stage, rows, product.chunks, sums);
    const unsigned turn = (threadIdx.x / kWarp - stage) % kRingConsumers;
#pragma unroll
    for (int part = 0; part < PassShape<kRows>::kParts; ++part) {
      constexpr int kPartRows = PassShape<kRows>::kPartRows;
      if (part * kPartRows >= pass.num_rows) break;
      reduce_warps<kPartRows>(sums.parts[part], num_tiles, turn, block.reduce_buffer,
                              [&](int t, int in_part, int tile_row, float sum) {
                                const int at = part * kPartRows + in_part;
                                const int pair =
                                    at < pass.num_rows ? route.pairs[pass.first + at] : -1;
                                use(pair, (first_tile + t) * kTileRows + tile_row, sum);
                              });
    }
    stage += product.chunks;
  }
  return stage;
}

// Computing warps, for activations that no x warp brings: from 9 rows on they are counted.
template <Value kValue, int kRows>
__device__ __forceinline__ void wait_for_rows(const DecoderBlockState<ExpertsDecoder>& block,
                                              int layer) {
  if constexpr (kXFromMemory<kRows>) return;
  if (threadIdx.x == 0) {
    wait_for_count(block.counter(kValue), block.template count_of<kValue>(layer));
  }
  named_barrier(1, kProductThreads);
}

// Gates and ups of this block's tiles. The route is known.
template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ unsigned multiply_up(const DecoderBlockState<ExpertsDecoder>& block,
                                                int layer, unsigned stage) {
  const DecoderLaunch& p = block.p;
  wait_for_rows<Value::kNorm, kRows>(block, layer);
  const Activations<kFormat, kRows> wide = wide_of<ExpertsDecoder, kFormat, kRows>(p, layer);
  return multiply_passes<kFormat, kRows>(
      block, expert_up(p), block.small.experts.route.up, norm_of<kFormat, kRows>(p, layer).data(),
      stage, [](int /*pair*/) { return 0; },
      [&](int pair, int column, float sum) {
        // Rows of gates and ups alternate.
        const float up = round_to_bf16(__shfl_xor_sync(kFullWarp, sum, 1));
        if (pair < 0 || column % 2 != 0) return;
        const float gate = activate(Activation::kGeluErf, round_to_bf16(sum));
        wide.store(ExpertRoute::row_of(pair),
                   p.dim + ExpertRoute::rank_of(pair) * p.experts.inner + column / 2,
                   gate * (up + 1.0f));
      });
}

// What the chosen experts add to rows, of this block's tiles.
template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ unsigned multiply_down(const DecoderBlockState<ExpertsDecoder>& block,
                                                  int layer, unsigned stage) {
  const DecoderLaunch& p = block.p;
  wait_for_rows<Value::kInner, kRows>(block, layer);
  const ExpertRoute& route = block.small.experts.route;
  const ExpertProduct product = expert_down(p);
  const int before = p.dim / kProductColumns;  // the attention's chunks
  return multiply_passes<kFormat, kRows>(
      block, product, route.down, wide_of<ExpertsDecoder, kFormat, kRows>(p, layer).data(), stage,
      [&](int pair) { return before + ExpertRoute::rank_of(pair) * product.chunks; },
      [&](int pair, int column, float sum) {
        if (pair < 0) return;
        const int row = ExpertRoute::row_of(pair), rank = ExpertRoute::rank_of(pair);
        announce_value(ff_sums_of<kRows>(p, layer, rank, row, column),
                       ff_sums_of<kRows>(p, layer + 1, rank, row, column),
                       route.weights[pair] * round_to_bf16(sum));
      });
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
