// The warps of decoder_kernel.cuh that move data: the streaming warp, the x warp, the signal warp.
#pragma once

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/grid_counters.cuh"

namespace gapless::cuda {

// ---- The streaming warp.

// What it asks for ahead: so many bytes in stages that are full. (Those that are not count as much:
// more of them instead, up to the same bytes, take longer.) Few rows are bound by the latency of
// small accesses, many are not.
template <int kRows>
inline constexpr int kInFlightBytes = (kRows <= 16 ? 64 : 80) << 10;

// Columns of some rows of a matrix.
struct WeightRun {
  const char* weights;
  int all_tiles;  // of the matrix' rows
  TileRange tiles;
  ChunkRange chunks;
};

template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void stream_tiles(RingProducer& producer, const WeightRun& run) {
  constexpr int kTileBytes = kPreparedTileBytes<kFormat>;
  constexpr int kMaxInFlight = kInFlightBytes<kRows> / (kGroupTiles * kTileBytes);
  static_assert(kMaxInFlight >= 1);
  static_assert(DecoderLayout::kRingBytes >= 2 * (kXBytes<kRows> + kGroupTiles * kTileBytes));
  const int lane = threadIdx.x % kWarp;
  for (int tile = run.tiles.begin; tile < run.tiles.end; tile += kGroupTiles) {
    const int bytes = min(kGroupTiles, run.tiles.end - tile) * kTileBytes;
    for (int chunk = run.chunks.begin; chunk < run.chunks.end; chunk += kWarp) {
      const char* from =
          run.weights + prepared_tile_offset<kFormat>(run.all_tiles, tile, chunk + lane);
      producer.push<1>({.x_bytes = kXBytes<kRows>,
                        .streamed = bytes,
                        .piece_bytes = bytes,
                        .max_in_flight = kMaxInFlight},
                       min(kWarp, run.chunks.end - chunk), bytes, from);
    }
  }
}

template <PreparedFormat kFormat, int kRows, typename CacheElement>
__device__ void stream(const DecoderBlockState& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  RingProducer producer(block.small.ring, block.ring_data, DecoderLayout::kRingBytes);
  PageStream<CacheElement> pages(p, block.small.rows);
  const ChunkRange norm_chunks{0, p.dim / kProductColumns};
  for (int l = 0; l <= p.num_layers; ++l) {
    const bool is_head = l == p.num_layers;
    if (is_head && p.head_weights == nullptr) break;
    const DecoderLayer& layer = p.layers[is_head ? 0 : l];
    OutputUnit unit = work.first_output();
    // Weights are asked for in one place: that is a lot of code, and inlined.
#pragma unroll 1
    for (int i = 0; is_head ? i < 1 : i < 2 || work.has(unit); ++i) {
      WeightRun run;
      if (is_head) {
        run = {p.head_weights, work.all_head_tiles(), work.head_tiles(), norm_chunks};
      } else if (i == 0) {
        run = {layer.input_weights, work.all_input_tiles(), work.qkv_tiles(), norm_chunks};
      } else if (i == 1) {
        if (l == 0) {
          // Keys and values of the step before may still be on their way into the cache.
          wait_for_predecessor();
          wait_barrier(shared_address(&block.small.rows_ready), 0);
          pages.start();
        }
        pages.template ask_for<kInFlightBytes<kRows>>(layer, producer);
        run = {layer.input_weights, work.all_input_tiles(), work.inner_tiles(), norm_chunks};
      } else {
        const bool is_inner = i % 2 == 0;
        run = {layer.output_weights, work.all_output_tiles(), work.tiles(unit),
               is_inner ? work.inner_chunks(unit) : work.attention_chunks(unit)};
        if (!is_inner) work.next(unit);
      }
      stream_tiles<kFormat, kRows>(producer, run);
    }
  }
}

// ---- The x warp: it reads what the rows are. From 9 rows on, one thread of it then brings
// activations (several would be in each other's way).

template <int kRows>
__device__ void bring_x(const DecoderBlockState& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  const DecoderCounters& counters = *p.counters;
  unsigned stage = 0, x_stage = 0;
  auto wait = [](const GridCounter& counter, unsigned target) {
    wait_for_count(counter, target);
    publish_to_copy_engine();
  };
  auto bring = [&](const Bf16* activations, ChunkRange chunks) {
    for (int chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      block.ring.bring_x(stage++, x_stage++, activations + chunk * (kRows * kProductColumns),
                         kXBytes<kRows>);
    }
  };
  auto bring_norm = [&](TileRange tiles) {
    for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
      bring(p.norm, {0, p.dim / kProductColumns});
    }
  };
  const int num_units = UnitRange(block.small.rows, p.num_rows).size();
  unsigned rows_normed = 0;
  for (unsigned l = 0; l < static_cast<unsigned>(p.num_layers); ++l) {
    const unsigned everyone = (l + 1) * gridDim.x;
    rows_normed += p.num_rows;
    wait(counters.norm, rows_normed);
    bring_norm(work.qkv_tiles());
    stage += num_units;
    bring_norm(work.inner_tiles());
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      wait(counters.inner, (l + 1) * work.inner_blocks());
      bring(p.wide, work.inner_chunks(unit));
      wait(counters.attention, everyone);
      bring(p.wide, work.attention_chunks(unit));
    }
  }
  if (p.head_weights != nullptr) {
    wait(counters.norm, rows_normed + p.num_rows);
    bring_norm(work.head_tiles());
  }
}

// ---- The signal warp: one thread.

// Whether activations of a layer are counted.
template <int kRows>
__device__ bool counts_activations(int layer) {
  return layer == 0 || !kXFromMemory<kRows>;
}

template <int kRows>
__device__ void signal_others(const DecoderBlockState& block) {
  const DecoderLaunch& p = block.p;
  DecoderCounters& counters = *p.counters;
  const bool has_row = blockIdx.x < static_cast<unsigned>(p.num_rows);
  const bool has_inner = block.work.inner_tiles().size() > 0;
  auto pass_on = [&](Written what, int times, GridCounter& counter) {
    wait_barrier(shared_address(&block.small.written[what]), times & 1);
    signal(counter);
  };
  if (has_row) pass_on(kNorm, 0, counters.norm);
  for (int l = 0; l < p.num_layers; ++l) {
    if (l == 0) pass_on(kQkv, l, counters.qkv);
    pass_on(kParts, l, counters.parts);
    if (counts_activations<kRows>(l)) {
      if (has_inner) pass_on(kInner, l, counters.inner);
      pass_on(kAttention, l, counters.attention);
    }
    if (l == 0) pass_on(kSums, l, counters.sums);
    const bool is_last = l + 1 == p.num_layers;
    if (has_row && counts_activations<kRows>(l + 1) && (!is_last || p.head_weights != nullptr)) {
      pass_on(kNorm, l + 1, counters.norm);
    }
  }
}

}  // namespace gapless::cuda
