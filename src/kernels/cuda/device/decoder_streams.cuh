// The warps of decoder_kernel.cuh that move data: the streaming warp, the x warp, the signal warp.
#pragma once

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/grid_counters.cuh"

namespace gapless::cuda {

// ---- The streaming warp.

// What it asks for ahead. Few rows are bound by the latency of small accesses, many are not.
inline constexpr int kFewRowsInFlight = 64 << 10;
inline constexpr int kManyRowsInFlight = 80 << 10;

template <PreparedFormat kFormat, int kRows>
__device__ void stream_tiles(RingProducer& producer, const char* weights, TileRange tiles,
                             int chunks_of_tile, ChunkRange chunks) {
  constexpr int kTileBytes = kPreparedTileBytes<kFormat>;
  const int lane = threadIdx.x % kWarp;
  for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
    const int num_tiles = min(kGroupTiles, tiles.end - tile);
    const char* from =
        weights + (std::int64_t{tile + lane} * chunks_of_tile + chunks.begin) * kTileBytes;
    for (int chunk = 0; chunk < chunks.size(); ++chunk, from += kTileBytes) {
      producer.push(kXBytes<kRows>, num_tiles, kTileBytes, from);
    }
  }
}

template <PreparedFormat kFormat, int kRows, typename CacheElement>
__device__ void stream(const DecoderBlockState& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  RingProducer producer(block.small.ring, block.ring_data, DecoderLayout::kRingBytes,
                        kRows <= 16 ? kFewRowsInFlight : kManyRowsInFlight);
  const int chunks = p.dim / kProductColumns;
  auto stream_weights = [&](const char* weights, TileRange tiles) {
    stream_tiles<kFormat, kRows>(producer, weights, tiles, chunks, {0, chunks});
  };
  for (int l = 0; l < p.num_layers; ++l) {
    const DecoderLayer& layer = p.layers[l];
    stream_weights(layer.input_weights, work.qkv_tiles());
    if (l == 0) {
      // Keys and values of the step before may still be on their way into the cache.
      wait_for_predecessor();
      wait_barrier(shared_address(&block.small.rows_ready), 0);
    }
    stream_pages<CacheElement>(p, layer, block.small.rows, producer);
    stream_weights(layer.input_weights, work.inner_tiles());
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      const auto stream_part = [&](ChunkRange chunks_of_part) {
        stream_tiles<kFormat, kRows>(producer, layer.output_weights, work.tiles(unit),
                                     work.output_chunks(), chunks_of_part);
      };
      stream_part(work.inner_chunks(unit));
      stream_part(work.attention_chunks(unit));
    }
  }
  if (p.head_weights != nullptr) stream_weights(p.head_weights, work.head_tiles());
}

// ---- The x warp: it reads what the rows are. From 9 rows on, one thread of it then brings
// activations (several would be in each other's way).

template <int kRows>
__device__ void bring_x(const DecoderBlockState& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  const DecoderCounters& counters = *p.counters;
  unsigned stage = 0;
  auto wait = [](const GridCounter& counter, unsigned target) {
    wait_for_count(counter, target);
    publish_to_copy_engine();
  };
  auto bring = [&](const Bf16* activations, ChunkRange chunks) {
    for (int chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      block.ring.bring_x(stage++, activations + chunk * (kRows * kProductColumns), kXBytes<kRows>);
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
