// All blocks of the text decoder in a decode step, and its logits, as one launch that reads weights
// and cached keys and values at the speed of memory.
//
// One block per multiprocessor stays for the whole launch:
//   streaming warp   walks, without ever waiting for a result, over everything that no step changes
//                    and this block will need: weights of its tiles, pages of its splits; layer
//                    after layer, as far ahead as the ring (granule_ring.cuh) has room.
//   x warp           brings the activations of the products, when their counter says they are there.
//   computing warps  per layer:
//       q, k, v of the block's tiles                       signal qkv
//       gelu(fc1) of its tiles                             signal inner
//       (qkv)        its splits of the attention           signal partials
//       (inner)      its share of [proj|fc2], columns of fc2
//       (partials)   combine its share of the splits       signal attention
//       (attention)  its share of [proj|fc2], columns of proj   signal sums
//       (sums)       its rows: residual, LayerNorm         signal norm
// A counter in brackets is waited for. Only the last three waits find others still at work, and the
// ring then holds about 5 us of what comes next: memory is busy all the while.
//
// Row invariance: the products sum as row_product.cuh says, [proj|fc2] over kDecoderColumnRanks
// shares of the columns in order; the attention as decoder_attention.cuh says.
//
// Scratch is written again one layer later. Between a buffer's last reader and its next writer
// there always is a counter for which the writer waited, directly or through others: every block
// signals sums after all its reads of the layer, and norm comes after all of sums.
#include <algorithm>

#include "kernels/cuda/decoder_blocks.h"
#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_attention.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_products.cuh"
#include "kernels/cuda/device/granule_ring.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"

namespace gapless::cuda {
namespace {

constexpr int kStreamWarp = kProductWarps;
constexpr int kXWarp = kProductWarps + 1;
constexpr int kThreads = (kProductWarps + 2) * kWarp;

struct Small {
  std::uint64_t ring_barriers[2 * kRingStages];
  std::uint64_t x_barriers[2 * kMaxXSlots];
  std::uint64_t rows_ready;  // mbarrier: `rows` is written
  float norm[kWarp];
  AttentionRows rows;
};

// Shared memory of a block, in bytes from its 128-byte aligned start.
template <int kRows>
struct Layout {
  static constexpr int kBudget = (227 << 10) - 128;  // of a multiprocessor
  static constexpr int kXBytes = XRing<kRows>::kSlots * XRing<kRows>::kSlotBytes;
  static constexpr int kGranules =
      (kBudget - kXBytes - kReduceBytes - static_cast<int>(sizeof(Small))) / kGranuleBytes;
  static constexpr int kX = kGranules * kGranuleBytes;
  static constexpr int kReduce = kX + kXBytes;
  static constexpr int kSmall = kReduce + kReduceBytes;
  static constexpr int kBytes = kSmall + static_cast<int>(sizeof(Small)) + 128;
  static_assert(sizeof(HeadPart) * 2 * kSplitUnits * 2 <= kReduceBytes);
};

// Everything that warps of a block share.
template <int kRows>
struct Block {
  const DecoderLaunch& p;
  GranuleRing ring;
  XRing<kRows> x_ring;
  float* reduce_buffer;
  Small& small;
  DecoderWork work;
};

// ---- The streaming warp.

__device__ void stream_tiles(RingProducer& producer, const char* weights, TileRange tiles,
                             int chunks_of_tile, int first_chunk, int num_chunks) {
  const int lane = threadIdx.x % kWarp;
  for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
    const int num_tiles = min(kGroupTiles, tiles.end - tile);
    const char* from =
        weights +
        (std::int64_t{tile + lane} * chunks_of_tile + first_chunk) * kGranuleBytes;
    for (int chunk = 0; chunk < num_chunks; ++chunk, from += kGranuleBytes) {
      producer.push(num_tiles, from);
    }
  }
}

template <int kRows>
__device__ void stream(const Block<kRows>& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  RingProducer producer(block.ring);
  for (int l = 0; l < p.num_layers; ++l) {
    const DecoderLayer& layer = p.layers[l];
    const int chunks = p.dim / kProductColumns;
    stream_tiles(producer, layer.input_weights, work.qkv_tiles(), chunks, 0, chunks);
    stream_tiles(producer, layer.input_weights, work.inner_tiles(), chunks, 0, chunks);
    if (l == 0) {
      // Keys and values of the step before may still be on their way into the cache.
      wait_for_predecessor();
      wait_barrier(shared_address(&block.small.rows_ready), 0);
    }
    stream_pages(p, layer, block.small.rows, producer);
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      for (const ChunkRange& part : {work.inner_chunks(unit), work.attention_chunks(unit)}) {
        stream_tiles(producer, layer.output_weights, work.tiles(unit), work.output_chunks(),
                     part.begin, part.size());
      }
    }
  }
  if (p.head_weights != nullptr) {
    const int chunks = p.dim / kProductColumns;
    stream_tiles(producer, p.head_weights, work.head_tiles(), chunks, 0, chunks);
  }
}

// ---- The x warp: it reads what the rows are, then one thread brings activations.

template <int kRows>
__device__ void bring_x(const Block<kRows>& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  DecoderCounters& counters = *p.counters;
  XProducer<kRows> producer(block.x_ring);
  const int norm_chunks = p.dim / kProductColumns;
  auto bring_norm = [&](TileRange tiles) {
    for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
      producer.push(p.norm, {0, norm_chunks});
    }
  };
  const auto blocks = gridDim.x;
  unsigned rows_normed = 0;
  for (unsigned l = 0; l < static_cast<unsigned>(p.num_layers); ++l) {
    rows_normed += p.num_rows;
    wait_for_count(counters.norm, rows_normed);
    bring_norm(work.qkv_tiles());
    bring_norm(work.inner_tiles());
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      wait_for_count(counters.inner, (l + 1) * blocks);
      producer.push(p.wide, work.inner_chunks(unit));
      wait_for_count(counters.attention, (l + 1) * blocks);
      producer.push(p.wide, work.attention_chunks(unit));
    }
  }
  if (p.head_weights != nullptr) {
    wait_for_count(counters.norm, rows_normed + p.num_rows);
    bring_norm(work.head_tiles());
  }
}

// ---- The computing warps.

__device__ void block_barrier() {
  named_barrier(1, kProductThreads);
}

// Announces what the computing warps wrote.
__device__ void announce(GridCounter& counter) {
  publish_to_copy_engine();
  block_barrier();
  if (threadIdx.x == 0) signal(counter);
}

__device__ void wait_together(const GridCounter& counter, unsigned target) {
  if (threadIdx.x == 0) wait_for_count(counter, target);
  block_barrier();
}

// Residual stream and LayerNorm of this block's rows. `previous`: the layer whose output product is
// to be added, nullptr for none. gamma == nullptr: no LayerNorm.
template <int kRows>
__device__ void finish_rows(const Block<kRows>& block, const DecoderLayer* previous,
                            const Bf16* gamma, const Bf16* beta) {
  const DecoderLaunch& p = block.p;
  constexpr int kVectors = kMaxDecoderNormVectors;
  for (int row = blockIdx.x; row < p.num_rows; row += gridDim.x) {
    float values[kVectors][kVector];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = (v * kProductThreads + threadIdx.x) * kVector;
      if (at >= p.dim) continue;
      auto* x = reinterpret_cast<uint4*>(p.x + std::int64_t{row} * p.dim + at);
      unpack(__ldcg(x), values[v]);
      if (previous != nullptr) {
        add_output(p, *previous, kRows, row, at, values[v]);
        const uint4 rounded = pack(values[v]);
        *x = rounded;
        unpack(rounded, values[v]);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum += values[v][i];
    }
    if (gamma == nullptr) continue;
    const float mean = product_block_sum(sum, block.small.norm) / p.dim;
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if ((v * kProductThreads + threadIdx.x) * kVector >= p.dim) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float difference = values[v][i] - mean;
        squares += difference * difference;
      }
    }
    const float scale = rsqrtf(product_block_sum(squares, block.small.norm) / p.dim + p.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = (v * kProductThreads + threadIdx.x) * kVector;
      if (at >= p.dim) continue;
      float g[kVector], b[kVector];
      load_vector(gamma + at, g);
      load_vector(beta + at, b);
#pragma unroll
      for (int i = 0; i < kVector; i += 2) {
        const float low = (values[v][i] - mean) * scale * g[i] + b[i];
        const float high = (values[v][i + 1] - mean) * scale * g[i + 1] + b[i + 1];
        *reinterpret_cast<std::uint32_t*>(p.norm + fragment_index<kRows>(row, at + i)) =
            pack_bf16x2(low, high);
      }
    }
    announce(p.counters->norm);
  }
}

template <int kRows>
__device__ void compute(const Block<kRows>& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  DecoderCounters& counters = *p.counters;
  const unsigned blocks = gridDim.x;
  const int norm_chunks = p.dim / kProductColumns;
  RingCursor cursor;
  int x_step = 0;
  auto accumulate = [&](Accumulators<kRows>& sums, int num_tiles, int num_chunks) {
    multiply_chunks<kRows>(block.ring, cursor, block.x_ring, x_step, num_tiles, num_chunks, sums);
  };
  // store(column, row of x, sum) of every output of the tiles.
  auto product = [&](TileRange tiles, auto store) {
    for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
      const int num_tiles = min(kGroupTiles, tiles.end - tile);
      Accumulators<kRows> sums = {};
      accumulate(sums, num_tiles, norm_chunks);
      reduce_warps<kRows>(sums, num_tiles, block.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            if (row < p.num_rows) store((tile + t) * kTileRows + tile_row, row, sum);
                          });
    }
  };

  wait_for_predecessor();
  finish_rows(block, nullptr, p.layers[0].gamma, p.layers[0].beta);

  for (unsigned l = 0; l < static_cast<unsigned>(p.num_layers); ++l) {
    const DecoderLayer& layer = p.layers[l];
    const unsigned everyone = (l + 1) * blocks;
    product(work.qkv_tiles(), [&](int column, int row, float sum) {
      sum += __bfloat162float(layer.qkv_bias[column]);
      p.qkv[std::int64_t{row} * 3 * p.dim + column] = __float2bfloat16_rn(sum);
    });
    announce(counters.qkv);
    product(work.inner_tiles(), [&](int column, int row, float sum) {
      const int inner = column - 3 * p.dim;
      sum = gelu_tanh(sum + __bfloat162float(layer.fc1_bias[inner]));
      p.wide[fragment_index<kRows>(row, p.dim + inner)] = __float2bfloat16_rn(sum);
    });
    announce(counters.inner);

    wait_together(counters.qkv, everyone);
    if (l == 0) wait_barrier(shared_address(&block.small.rows_ready), 0);
    attend_to_splits(p, layer, block.small.rows, block.ring, cursor,
                     reinterpret_cast<HeadPart(*)[kSplitUnits][2]>(block.reduce_buffer));
    announce(counters.partials);

    bool combined = false;
    auto combine = [&] {
      if (combined) return;
      combined = true;
      wait_together(counters.partials, everyone);
      combine_splits<kRows>(p, block.small.rows);
      announce(counters.attention);
    };
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      const TileRange tiles = work.tiles(unit);
      const int num_tiles = tiles.end - tiles.begin;
      Accumulators<kRows> sums = {};
      accumulate(sums, num_tiles, work.inner_chunks(unit).size());
      combine();
      accumulate(sums, num_tiles, work.attention_chunks(unit).size());
      reduce_warps<kRows>(sums, num_tiles, block.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            const int column = (tiles.begin + t) * kTileRows + tile_row;
                            if (row >= p.num_rows) return;
                            p.sums[(std::int64_t{unit.rank} * kRows + row) * p.dim + column] = sum;
                          });
    }
    combine();
    announce(counters.sums);

    const bool is_last = l + 1 == static_cast<unsigned>(p.num_layers);
    if (blockIdx.x < static_cast<unsigned>(p.num_rows)) {
      wait_together(counters.sums, everyone);
      finish_rows(block, &layer, is_last ? p.head_gamma : p.layers[l + 1].gamma,
                  is_last ? p.head_beta : p.layers[l + 1].beta);
    }
  }

  if (p.head_weights != nullptr) {
    product(work.head_tiles(), [&](int column, int row, float sum) {
      if (column >= p.vocab) return;
      if (p.head_bias != nullptr) sum += __bfloat162float(p.head_bias[column]);
      p.logits[std::int64_t{row} * p.vocab + column] = sum;
    });
  }
}

// The last block to finish leaves the counters as zeros. By then nobody waits for one.
__device__ void finish(DecoderCounters& counters) {
  __threadfence();
  if (atomicAdd(&counters.finished.count, 1u) != gridDim.x - 1) return;
  for (GridCounter* counter : {&counters.qkv, &counters.inner, &counters.partials,
                               &counters.attention, &counters.sums, &counters.norm,
                               &counters.finished}) {
    counter->count = 0;
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    decoder_blocks_kernel(const __grid_constant__ DecoderLaunch p) {
  using L = Layout<kRows>;
  extern __shared__ char raw_shared[];
  char* base = raw_shared + (128 - shared_address(raw_shared) % 128) % 128;
  const std::uint32_t shared = shared_address(base);
  auto& small = *reinterpret_cast<Small*>(base + L::kSmall);
  const std::uint32_t ring_barriers = shared_address(small.ring_barriers);
  const std::uint32_t x_barriers = shared_address(small.x_barriers);
  const Block<kRows> block{
      p,
      {shared, ring_barriers, ring_barriers + kRingStages * 8, L::kGranules},
      {shared + L::kX, x_barriers, x_barriers + XRing<kRows>::kSlots * 8},
      reinterpret_cast<float*>(base + L::kReduce),
      small,
      DecoderWork(p)};

  let_successor_start();
  if (threadIdx.x == 0) {
    block.ring.init();
    block.x_ring.init();
    init_barrier(shared_address(&small.rows_ready), 1);
    fence_barrier_init();
  }
  __syncthreads();
  const int warp = threadIdx.x / kWarp;
  if (warp == kStreamWarp) {
    stream(block);
  } else if (warp == kXWarp) {
    wait_for_predecessor();
    small.rows.load(p);
    if (threadIdx.x % kWarp == 0) {
      arrive(shared_address(&small.rows_ready));
      bring_x(block);
    }
  } else {
    compute(block);
    if (threadIdx.x == 0) finish(*p.counters);
  }
}

template <int kRows>
Status launch_rows(Stream& stream, const DecoderLaunch& params, int num_blocks) {
  return launch("decoder_blocks", stream,
                {.grid = dim3(static_cast<unsigned>(num_blocks)),
                 .block = dim3(kThreads),
                 .shared_bytes = Layout<kRows>::kBytes},
                decoder_blocks_kernel<kRows>, params);
}

constexpr int slice_rows(int num_rows) {
  return num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : num_rows <= 32 ? 32 : 64;
}

// Where the scratch's arrays lie.
struct ScratchLayout {
  std::size_t norm = 0, wide = 0, qkv = 0, sums = 0, softmax = 0, outputs = 0, total = 0;

  ScratchLayout(int max_rows, int dim, int ff_dim, int num_heads) {
    const auto rows = static_cast<std::size_t>(slice_rows(max_rows));
    const auto d = static_cast<std::size_t>(dim), f = static_cast<std::size_t>(ff_dim);
    const std::size_t parts = rows * static_cast<std::size_t>(num_heads) * kMaxDecoderSplits;
    norm = take(rows * d * sizeof(Bf16));
    wide = take(rows * (d + f) * sizeof(Bf16));
    qkv = take(rows * 3 * d * sizeof(Bf16));
    sums = take(kDecoderColumnRanks * rows * d * sizeof(float));
    softmax = take(parts * sizeof(float2));
    outputs = take(parts * kDecoderHeadDim * sizeof(float));
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = total;
    total += (bytes + 255) / 256 * 256;
    return at;
  }
};

DecoderLayer make_layer(const DecoderBlock& block) {
  return {.input_weights = static_cast<const char*>(block.prepared_in),
          .output_weights = static_cast<const char*>(block.prepared_out),
          .gamma = static_cast<const Bf16*>(block.gamma),
          .beta = static_cast<const Bf16*>(block.beta),
          .qkv_bias = static_cast<const Bf16*>(block.qkv.bias),
          .fc1_bias = static_cast<const Bf16*>(block.fc1.bias),
          .proj_bias = static_cast<const Bf16*>(block.proj.bias),
          .fc2_bias = static_cast<const Bf16*>(block.fc2.bias),
          .keys = static_cast<Bf16*>(block.kv.k),
          .values = static_cast<Bf16*>(block.kv.v)};
}

}  // namespace

bool decoder_blocks_supports(const DecoderBlocksParams& params) {
  const DecoderBlocksParams& p = params;
  if (!p.decode || p.num_blocks < 1 || p.num_blocks > kMaxDecoderLayers) return false;
  if (p.num_tokens < 1 || p.num_tokens > kMaxRows || p.num_sequences != p.num_tokens) return false;
  const DecoderBlock& first = p.blocks[0];
  const int dim = first.qkv.in, ff_dim = first.fc1.out;
  for (int i = 0; i < p.num_blocks; ++i) {
    const DecoderBlock& b = p.blocks[i];
    if (b.prepared_in == nullptr || b.prepared_out == nullptr) return false;
    for (const LinearWeights* w : {&b.qkv, &b.proj, &b.fc1, &b.fc2}) {
      if (w->bias == nullptr) return false;
    }
  }
  const bool head_fits = p.head == nullptr || p.head->linear.prepared != nullptr;
  return head_fits && p.head_dim == kDecoderHeadDim && p.num_heads % 2 == 0 &&
         p.num_heads * p.head_dim == dim && p.rotary_dim % (2 * kVector) == 0 &&
         p.rotary_dim <= kDecoderHeadDim && dim % kProductColumns == 0 &&
         ff_dim % kProductColumns == 0 &&
         dim <= kMaxDecoderNormVectors * kProductThreads * kVector &&
         p.max_context <= kMaxDecoderSplits * kSplitUnits * kUnitKeys;
}

Status decoder_blocks(Stream& stream, const DecoderBlocksParams& params, void* counters,
                      int num_multiprocessors) {
  const int dim = params.blocks[0].qkv.in, ff_dim = params.blocks[0].fc1.out;
  const ScratchLayout layout(params.num_tokens, dim, ff_dim, params.num_heads);
  auto* scratch = static_cast<char*>(params.block_scratch);
  DecoderLaunch p = {};
  p.num_layers = params.num_blocks;
  for (int i = 0; i < params.num_blocks; ++i) p.layers[i] = make_layer(params.blocks[i]);
  p.dim = dim;
  p.ff_dim = ff_dim;
  p.num_heads = params.num_heads;
  p.rotary_dim = params.rotary_dim;
  p.eps = LayerNormParams{}.eps;
  p.num_rows = params.num_tokens;
  p.x = static_cast<Bf16*>(params.x);
  p.sequences = params.sequences;
  p.page_table = params.page_table;
  p.page_table_stride = params.page_table_stride;
  p.rope_table = params.rope_table;
  p.norm = reinterpret_cast<Bf16*>(scratch + layout.norm);
  p.wide = reinterpret_cast<Bf16*>(scratch + layout.wide);
  p.qkv = reinterpret_cast<Bf16*>(scratch + layout.qkv);
  p.sums = reinterpret_cast<float*>(scratch + layout.sums);
  p.split_softmax = reinterpret_cast<float2*>(scratch + layout.softmax);
  p.split_outputs = reinterpret_cast<float*>(scratch + layout.outputs);
  p.counters = static_cast<DecoderCounters*>(counters);
  if (params.head != nullptr) {
    const DecoderHead& head = *params.head;
    p.head_weights = static_cast<const char*>(head.linear.prepared);
    p.head_gamma = static_cast<const Bf16*>(head.gamma);
    p.head_beta = static_cast<const Bf16*>(head.beta);
    p.head_bias = static_cast<const Bf16*>(head.linear.bias);
    p.logits = head.logits;
    p.vocab = head.linear.out;
  }
  switch (slice_rows(params.num_tokens)) {
    case 8:
      return launch_rows<8>(stream, p, num_multiprocessors);
    case 16:
      return launch_rows<16>(stream, p, num_multiprocessors);
    case 32:
      return launch_rows<32>(stream, p, num_multiprocessors);
    default:
      return launch_rows<64>(stream, p, num_multiprocessors);
  }
}

std::size_t decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim, int num_heads) {
  return ScratchLayout(max_rows, dim, ff_dim, num_heads).total;
}

std::size_t decoder_blocks_counter_bytes() {
  return sizeof(DecoderCounters);
}

}  // namespace gapless::cuda
