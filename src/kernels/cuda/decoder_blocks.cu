// All blocks of the text decoder in a decode step, and its logits, as one launch that reads weights
// and cached keys and values at the speed of memory.
//
// One block per multiprocessor stays for the whole launch:
//   streaming warp   walks, without ever waiting for a result, over everything that no step changes
//                    and this block will need: weights of its tiles, pages of its units; layer
//                    after layer, as far ahead as the ring (granule_ring.cuh) has room.
//   x warp           brings the activations of the products, when their counter says they are
//                    there.
//   signal warp      tells the other blocks what this one has written: a fence and an atomic take
//                    up to two microseconds, for which nobody else should wait.
//   computing warps  per layer:
//       q, k, v of the block's tiles
//       (q, k, v)    its units of the attention                 signal parts
//       gelu(fc1) of its tiles                                  signal inner
//       (parts)      combine its share of rows and heads        signal attention
//       (inner)      its share of [proj|fc2], columns of fc2
//       (attention)  its share of [proj|fc2], columns of proj: partial sums
//       (sums)       its row: residual, LayerNorm               signal norm
// What is in brackets is waited for. q, k, v and the sums are needed at once: they say themselves
// when they are there (self_announcing.cuh). The others are signalled through counters while there
// are products that need none of them. In all these waits the ring holds 5 us of what comes next,
// and memory stays busy.
//
// Row invariance: a product sums 128 columns in order (row_product.cuh), then every eighth 128,
// then over the eight in order; [proj|fc2] does so in kDecoderColumnRanks shares of the columns,
// then over these in order. The attention: decoder_attention.cuh.
//
// Scratch is written again one layer later. Between a buffer's last reader and its next writer
// there always is something for which the writer waited, directly or through others: a row's sums
// are complete after all blocks' reads of the layer, and norm comes after the sums.
#include <algorithm>

#include "kernels/cuda/decoder_blocks.h"
#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_attention.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_products.cuh"
#include "kernels/cuda/device/granule_ring.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/cuda/launch.h"

namespace gapless::cuda {
namespace {

constexpr int kStreamWarp = kProductWarps;
constexpr int kXWarp = kProductWarps + 1;
constexpr int kSignalWarp = kProductWarps + 2;
constexpr int kThreads = (kProductWarps + 3) * kWarp;

// What computing warps tell the signal warp, in the order of a layer.
enum Written { kQkv, kParts, kInner, kAttention, kSums, kNorm, kNumWritten };

struct Small {
  std::uint64_t ring_barriers[2 * kRingStages];
  std::uint64_t x_barriers[2 * kMaxXSlots];
  std::uint64_t rows_ready;            // mbarrier: `rows` is written
  std::uint64_t written[kNumWritten];  // mbarriers: the computing warps have written it
  float norm[kWarp];
  AttentionRows rows;
};

// Shared memory of a block, in bytes from its 128-byte aligned start.
template <int kRows>
struct Layout {
  static constexpr int kBudget = (227 << 10) - 128;  // of a multiprocessor
  static constexpr int kXBytes = XSlots<kRows>::kSlots * XSlots<kRows>::kSlotBytes;
  static constexpr int kGranules =
      (kBudget - kXBytes - kReduceBytes - static_cast<int>(sizeof(Small))) / kGranuleBytes;
  static constexpr int kX = kGranules * kGranuleBytes;
  static constexpr int kReduce = kX + kXBytes;
  static constexpr int kSmall = kReduce + kReduceBytes;
  static constexpr int kBytes = kSmall + static_cast<int>(sizeof(Small)) + 128;
};

// Everything that warps of a block share.
template <int kRows>
struct Block {
  const DecoderLaunch& p;
  GranuleRing<Layout<kRows>::kGranules> ring;
  XSlots<kRows> x;
  float* reduce_buffer;
  Small& small;
  DecoderWork work;
};

// ---- The streaming warp.

template <typename Producer>
__device__ void stream_tiles(Producer& producer, const char* weights, TileRange tiles,
                             int chunks_of_tile, ChunkRange chunks) {
  const int lane = threadIdx.x % kWarp;
  for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
    const int num_tiles = min(kGroupTiles, tiles.end - tile);
    const char* from =
        weights + (std::int64_t{tile + lane} * chunks_of_tile + chunks.begin) * kGranuleBytes;
    for (int chunk = 0; chunk < chunks.size(); ++chunk, from += kGranuleBytes) {
      producer.push(num_tiles, num_tiles, from);
    }
  }
}

template <int kRows, typename CacheElement>
__device__ void stream(const Block<kRows>& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  RingProducer producer(block.ring);
  const int chunks = p.dim / kProductColumns;
  for (int l = 0; l < p.num_layers; ++l) {
    const DecoderLayer& layer = p.layers[l];
    stream_tiles(producer, layer.input_weights, work.qkv_tiles(), chunks, {0, chunks});
    if (l == 0) {
      // Keys and values of the step before may still be on their way into the cache.
      wait_for_predecessor();
      wait_barrier(shared_address(&block.small.rows_ready), 0);
    }
    stream_pages<CacheElement>(p, layer, block.small.rows, producer);
    stream_tiles(producer, layer.input_weights, work.inner_tiles(), chunks, {0, chunks});
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      for (int part = 0; part < 2; ++part) {
        stream_tiles(producer, layer.output_weights, work.tiles(unit), work.output_chunks(),
                     part == 0 ? work.inner_chunks(unit) : work.attention_chunks(unit));
      }
    }
  }
  if (p.head_weights != nullptr) {
    stream_tiles(producer, p.head_weights, work.head_tiles(), chunks, {0, chunks});
  }
}

// ---- The x warp: it reads what the rows are, then brings activations.

// One lane waits for all.
__device__ void wait_in_warp(const GridCounter& counter, unsigned target) {
  if (threadIdx.x % kWarp == 0) wait_for_count(counter, target);
  __syncwarp();
  publish_to_copy_engine();
}

template <int kRows>
__device__ void bring_x(const Block<kRows>& block) {
  const DecoderLaunch& p = block.p;
  const DecoderWork& work = block.work;
  const DecoderCounters& counters = *p.counters;
  XProducer<kRows> producer(block.x);
  unsigned stage = 0;  // of the ring
  auto push = [&](const Bf16* activations, ChunkRange chunks) {
    producer.push(activations, chunks, stage);
    stage += chunks.size();
  };
  auto push_norm = [&](TileRange tiles) {
    for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
      push(p.norm, {0, p.dim / kProductColumns});
    }
  };
  const int num_units = UnitRange(block.small.rows, p.num_rows).size();
  unsigned rows_normed = 0;
  for (unsigned l = 0; l < static_cast<unsigned>(p.num_layers); ++l) {
    const unsigned everyone = (l + 1) * gridDim.x;
    rows_normed += p.num_rows;
    wait_in_warp(counters.norm, rows_normed);
    push_norm(work.qkv_tiles());
    stage += num_units;
    push_norm(work.inner_tiles());
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      wait_in_warp(counters.inner, everyone);
      push(p.wide, work.inner_chunks(unit));
      wait_in_warp(counters.attention, everyone);
      push(p.wide, work.attention_chunks(unit));
    }
  }
  if (p.head_weights != nullptr) {
    wait_in_warp(counters.norm, rows_normed + p.num_rows);
    push_norm(work.head_tiles());
  }
}

// ---- The signal warp: one thread.

template <int kRows>
__device__ void signal_others(const Block<kRows>& block) {
  const DecoderLaunch& p = block.p;
  DecoderCounters& counters = *p.counters;
  const bool has_row = blockIdx.x < static_cast<unsigned>(p.num_rows);
  auto pass_on = [&](Written what, int times, GridCounter& counter) {
    wait_barrier(shared_address(&block.small.written[what]), times & 1);
    signal(counter);
  };
  if (has_row) pass_on(kNorm, 0, counters.norm);
  for (int l = 0; l < p.num_layers; ++l) {
    if (l == 0) pass_on(kQkv, l, counters.qkv);
    pass_on(kParts, l, counters.parts);
    pass_on(kInner, l, counters.inner);
    pass_on(kAttention, l, counters.attention);
    if (l == 0) pass_on(kSums, l, counters.sums);
    const bool is_last = l + 1 == p.num_layers;
    if (has_row && (!is_last || p.head_weights != nullptr)) {
      pass_on(kNorm, l + 1, counters.norm);
    }
  }
}

// ---- The computing warps.

// Every thread of theirs, after it wrote.
template <int kRows>
__device__ void announce(const Block<kRows>& block, Written what) {
  // The others are read by loads.
  if (what == kInner || what == kAttention || what == kNorm) publish_to_copy_engine();
  __syncwarp();
  if (threadIdx.x % kWarp == 0) arrive(shared_address(&block.small.written[what]));
}

__device__ void wait_together(const GridCounter& counter, unsigned target) {
  if (threadIdx.x == 0) wait_for_count(counter, target);
  named_barrier(1, kProductThreads);
}

template <int kRows>
__device__ float* sums_of(const DecoderLaunch& p, int layer, int rank, int row, int column) {
  return p.sums + (std::int64_t{layer % 2 * kDecoderColumnRanks + rank} * kRows + row) * p.dim +
         column;
}

// The q, k and v that a layer makes of all rows.
__device__ Bf16* qkv_of(const DecoderLaunch& p, int layer) {
  return p.qkv + std::int64_t{layer % 2} * p.num_rows * 3 * p.dim;
}

// Residual stream and LayerNorm of this block's row. `layer`: whose output product is to be added;
// -1: none. gamma == nullptr: no LayerNorm.
template <int kRows>
__device__ void finish_row(const Block<kRows>& block, int layer, const Bf16* gamma,
                           const Bf16* beta) {
  const DecoderLaunch& p = block.p;
  const int row = blockIdx.x;
  const int at = threadIdx.x * kVector;
  const bool mine = at < p.dim;
  auto load = [&](const Bf16* from) {
    return mine && from != nullptr ? __ldcg(reinterpret_cast<const uint4*>(from + at)) : uint4{};
  };
  // Asked for before the wait: parameters come from far away.
  Bf16* x = p.x + std::int64_t{row} * p.dim;
  const uint4 raw_x = load(x), raw_gamma = load(gamma), raw_beta = load(beta);
  float values[kVector];
  unpack(raw_x, values);
  if (layer >= 0) {
    const uint4 raw_proj = load(p.layers[layer].proj_bias);
    const uint4 raw_fc2 = load(p.layers[layer].fc2_bias);
    if (layer == 0) wait_together(p.counters->sums, gridDim.x);
    float sums[kVector] = {}, proj[kVector], fc2[kVector];
    if (mine) {
      constexpr int kPieces = kDecoderColumnRanks * 2;
      const float* from[kPieces];
      uint4 pieces[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        from[i] = sums_of<kRows>(p, layer, i / 2, row, at + i % 2 * 4);
      load_when_written(from, pieces);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        float* to = sums + i % 2 * 4;
        to[0] += __uint_as_float(pieces[i].x);
        to[1] += __uint_as_float(pieces[i].y);
        to[2] += __uint_as_float(pieces[i].z);
        to[3] += __uint_as_float(pieces[i].w);
      }
    }
    unpack(raw_proj, proj);
    unpack(raw_fc2, fc2);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += sums[i] + (proj[i] + fc2[i]);
    const uint4 rounded = pack(values);
    if (mine) *reinterpret_cast<uint4*>(x + at) = rounded;
    unpack(rounded, values);
  }
  if (gamma == nullptr) return;
  float sum = 0, squares = 0, g[kVector], b[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += values[i];
  const float mean = product_block_sum(sum, block.small.norm) / p.dim;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float difference = values[i] - mean;
    if (mine) squares += difference * difference;
  }
  const float scale = rsqrtf(product_block_sum(squares, block.small.norm) / p.dim + p.eps);
  unpack(raw_gamma, g);
  unpack(raw_beta, b);
#pragma unroll
  for (int i = 0; mine && i < kVector; i += 2) {
    const float low = (values[i] - mean) * scale * g[i] + b[i];
    const float high = (values[i + 1] - mean) * scale * g[i + 1] + b[i + 1];
    *reinterpret_cast<std::uint32_t*>(p.norm + fragment_index<kRows>(row, at + i)) =
        pack_bf16x2(low, high);
  }
  announce(block, kNorm);
}

// The products whose x is the normalised row.
enum class NormProduct { kQkv, kInner, kHead };

// This thread's biases of a group of tiles: it reduces rows threadIdx.x % kTileRows of them. Asked
// for before the product, because they come from far away.
class Biases {
 public:
  __device__ Biases(const Bf16* bias, int first_column, int columns) {
    const int column = first_column + static_cast<int>(threadIdx.x) % kTileRows;
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      const bool exists = bias != nullptr && column + tile * kTileRows < columns;
      values_[tile] = exists ? bias[column + tile * kTileRows] : Bf16{};
    }
  }
  __device__ float operator[](int tile) const {
    static_assert(kGroupTiles == 4);
    const Bf16 low = tile == 0 ? values_[0] : values_[1];
    const Bf16 high = tile == 2 ? values_[2] : values_[3];
    return __bfloat162float(tile < 2 ? low : high);
  }

 private:
  Bf16 values_[kGroupTiles];
};

template <int kRows>
__device__ __forceinline__ void store_product(const DecoderLaunch& p, NormProduct kind, int layer,
                                              int column, int row, float sum) {
  if (kind == NormProduct::kQkv) {
    const std::int64_t at = std::int64_t{row} * 3 * p.dim + column;
    announce_value(qkv_of(p, layer) + at, qkv_of(p, layer + 1) + at, __float2bfloat16_rn(sum));
  } else if (kind == NormProduct::kInner) {
    p.wide[fragment_index<kRows>(row, column - 2 * p.dim)] = __float2bfloat16_rn(gelu_tanh(sum));
  } else if (column < p.vocab) {
    p.logits[std::int64_t{row} * p.vocab + column] = sum;
  }
}

// The computing warps' way through the launch.
template <int kRows, typename CacheElement>
class Computation {
 public:
  __device__ explicit Computation(const Block<kRows>& block)
      : block_(block),
        p_(block.p),
        has_row_(blockIdx.x < static_cast<unsigned>(block.p.num_rows)) {}

  __device__ void run() {
    wait_for_predecessor();
    if (has_row_) finish_row(block_, -1, p_.layers[0].gamma, p_.layers[0].beta);
    for (int l = 0; l <= p_.num_layers; ++l) {
      const bool is_head = l == p_.num_layers;
      if (is_head && p_.head_weights == nullptr) break;
      const unsigned everyone = (l + 1) * gridDim.x;
      // Not over a list of the two, which would lie in local memory.
      for (int i = 0; i < 2; ++i) {
        const NormProduct kind = i == 0 ? NormProduct::kQkv : NormProduct::kInner;
        multiply_norm(l, is_head ? NormProduct::kHead : kind);
        if (is_head) return;
        if (kind == NormProduct::kInner) announce(block_, kInner);
        if (kind == NormProduct::kQkv) attend(l);
      }
      combine(everyone);
      multiply_output(l);
      if (!has_row_) continue;
      const bool is_last = l + 1 == p_.num_layers;
      finish_row(block_, l, is_last ? p_.head_gamma : p_.layers[l + 1].gamma,
                 is_last ? p_.head_beta : p_.layers[l + 1].beta);
    }
  }

 private:
  __device__ unsigned turn(unsigned stage) const {
    return (threadIdx.x / kWarp - stage) % kRingConsumers;
  }

  __device__ void multiply_norm(int l, NormProduct kind) {
    const DecoderLayer& layer = p_.layers[kind == NormProduct::kHead ? 0 : l];
    const DecoderWork& work = block_.work;
    const TileRange tiles = kind == NormProduct::kQkv     ? work.qkv_tiles()
                            : kind == NormProduct::kInner ? work.inner_tiles()
                                                          : work.head_tiles();
    const int chunks = p_.dim / kProductColumns;
    for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
      const int num_tiles = min(kGroupTiles, tiles.end - tile);
      const Biases biases = kind == NormProduct::kQkv
                                ? Biases(layer.qkv_bias, tile * kTileRows, 3 * p_.dim)
                            : kind == NormProduct::kInner
                                ? Biases(layer.fc1_bias, tile * kTileRows - 3 * p_.dim, p_.ff_dim)
                                : Biases(p_.head_bias, tile * kTileRows, p_.vocab);
      Accumulators<kRows> sums = {};
      multiply_stages<kRows>(num_tiles, block_.ring, at_, chunks, block_.x, x_step_, sums);
      reduce_warps<kRows>(sums, num_tiles, turn(at_.stage), block_.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            if (row >= p_.num_rows) return;
                            store_product<kRows>(p_, kind, l, (tile + t) * kTileRows + tile_row,
                                                 row, sum + biases[t]);
                          });
      at_.advance(chunks, num_tiles);
    }
  }

  __device__ void attend(int l) {
    if (l == 0) {
      announce(block_, kQkv);
      wait_together(p_.counters->qkv, gridDim.x);
    }
    wait_barrier(shared_address(&block_.small.rows_ready), 0);
    attend_to_units<CacheElement>(p_, p_.layers[l], qkv_of(p_, l), block_.small.rows, block_.ring,
                                  at_);
    at_.advance(UnitRange(block_.small.rows, p_.num_rows).size(), kUnitGranules);
    announce(block_, kParts);
  }

  __device__ void combine(unsigned everyone) {
    wait_together(p_.counters->parts, everyone);
    combine_units<kRows, CacheElement>(p_, block_.small.rows);
    announce(block_, kAttention);
  }

  __device__ void multiply_output(int l) {
    const DecoderWork& work = block_.work;
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      const TileRange tiles = work.tiles(unit);
      const int num_tiles = tiles.end - tiles.begin;
      const int chunks = work.inner_chunks(unit).size() + work.attention_chunks(unit).size();
      Accumulators<kRows> sums = {};
      multiply_stages<kRows>(num_tiles, block_.ring, at_, chunks, block_.x, x_step_, sums);
      reduce_warps<kRows>(sums, num_tiles, turn(at_.stage), block_.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            const int column = (tiles.begin + t) * kTileRows + tile_row;
                            if (row >= p_.num_rows) return;
                            announce_value(sums_of<kRows>(p_, l, unit.rank, row, column),
                                           sums_of<kRows>(p_, l + 1, unit.rank, row, column), sum);
                          });
      at_.advance(chunks, num_tiles);
    }
    if (l == 0) announce(block_, kSums);
  }

  const Block<kRows>& block_;
  const DecoderLaunch& p_;
  const bool has_row_;
  RingPosition at_;
  unsigned x_step_ = 0;
};

// The last block leaves the counters as zeros: all warps of all blocks are through with them.
__device__ void finish(DecoderCounters& counters) {
  __threadfence();
  if (atomicAdd(&counters.finished.count, 1u) != gridDim.x - 1) return;
  for (GridCounter* counter : {&counters.qkv, &counters.inner, &counters.parts, &counters.attention,
                               &counters.sums, &counters.norm, &counters.finished}) {
    counter->count = 0;
  }
}

template <int kRows, typename CacheElement>
__global__ void __launch_bounds__(kThreads, 1)
    decoder_blocks_kernel(const __grid_constant__ DecoderLaunch p) {
  using L = Layout<kRows>;
  extern __shared__ char raw_shared[];
  char* base = raw_shared + (128 - shared_address(raw_shared) % 128) % 128;
  const std::uint32_t shared = shared_address(base);
  auto& small = *reinterpret_cast<Small*>(base + L::kSmall);
  const std::uint32_t ring_barriers = shared_address(small.ring_barriers);
  const std::uint32_t x_barriers = shared_address(small.x_barriers);
  const Block<kRows> block{p,
                           {shared, ring_barriers, ring_barriers + kRingStages * 8},
                           {shared + L::kX, x_barriers, x_barriers + XSlots<kRows>::kSlots * 8},
                           reinterpret_cast<float*>(base + L::kReduce),
                           small,
                           DecoderWork(p)};

  let_successor_start();
  if (threadIdx.x == 0) {
    block.ring.init();
    block.x.init();
    init_barrier(shared_address(&small.rows_ready), 1);
    for (std::uint64_t& barrier : small.written) {
      init_barrier(shared_address(&barrier), kProductWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int warp = threadIdx.x / kWarp;
  if (warp == kStreamWarp) {
    stream<kRows, CacheElement>(block);
  } else if (warp == kXWarp) {
    wait_for_predecessor();
    small.rows.load<CacheElement>(p);
    if (threadIdx.x % kWarp == 0) arrive(shared_address(&small.rows_ready));
    bring_x(block);
  } else if (warp == kSignalWarp) {
    wait_for_predecessor();
    if (threadIdx.x % kWarp == 0) signal_others(block);
  } else {
    Computation<kRows, CacheElement>(block).run();
  }
  __syncthreads();
  if (threadIdx.x == 0) finish(*p.counters);
}

template <int kRows>
Status launch_rows(Stream& stream, const DecoderLaunch& params, KvFormat kv_format,
                   int num_blocks) {
  return launch("decoder_blocks", stream,
                {.grid = dim3(static_cast<unsigned>(num_blocks)),
                 .block = dim3(kThreads),
                 .shared_bytes = Layout<kRows>::kBytes},
                kv_format == KvFormat::kFp8 ? decoder_blocks_kernel<kRows, E4m3>
                                            : decoder_blocks_kernel<kRows, Bf16>,
                params);
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
    const std::size_t parts = rows * static_cast<std::size_t>(num_heads) * kMaxUnits;
    norm = take(rows * d * sizeof(Bf16));
    wide = take(rows * (d + f) * sizeof(Bf16));
    qkv = take(2 * rows * 3 * d * sizeof(Bf16));
    sums = take(2 * kDecoderColumnRanks * rows * d * sizeof(float));
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
          .keys = block.kv.k,
          .values = block.kv.v};
}

}  // namespace

bool decoder_blocks_supports(const DecoderBlocksParams& params, int num_multiprocessors) {
  const DecoderBlocksParams& p = params;
  if (!p.decode || p.num_blocks < 1 || p.num_blocks > kMaxDecoderLayers) return false;
  const int max_rows = std::min(kMaxRows, num_multiprocessors);
  if (p.num_tokens < 1 || p.num_tokens > max_rows || p.num_sequences != p.num_tokens) return false;
  const DecoderBlock& first = p.blocks[0];
  const int dim = first.qkv.in, ff_dim = first.fc1.out;
  for (int i = 0; i < p.num_blocks; ++i) {
    const DecoderBlock& b = p.blocks[i];
    if (b.prepared_in == nullptr || b.prepared_out == nullptr) return false;
    if (b.kv.format != first.kv.format) return false;
    for (const LinearWeights* w : {&b.qkv, &b.proj, &b.fc1, &b.fc2}) {
      if (w->bias == nullptr) return false;
    }
  }
  const bool head_fits = p.head == nullptr || p.head->linear.prepared != nullptr;
  return head_fits && p.head_dim == kDecoderHeadDim && p.num_heads % 2 == 0 &&
         p.num_heads * p.head_dim == dim && p.rotary_dim % (2 * kVector) == 0 && p.rotary_dim > 0 &&
         p.rotary_dim <= kDecoderHeadDim && dim % kProductColumns == 0 &&
         ff_dim % kProductColumns == 0 && dim <= kMaxDecoderDim &&
         p.max_context <= kMaxDecoderContext;
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
  p.part_softmax = reinterpret_cast<float2*>(scratch + layout.softmax);
  p.part_outputs = reinterpret_cast<float*>(scratch + layout.outputs);
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
  const KvFormat kv_format = params.blocks[0].kv.format;
  switch (slice_rows(params.num_tokens)) {
    case 8:
      return launch_rows<8>(stream, p, kv_format, num_multiprocessors);
    case 16:
      return launch_rows<16>(stream, p, kv_format, num_multiprocessors);
    case 32:
      return launch_rows<32>(stream, p, kv_format, num_multiprocessors);
    default:
      return launch_rows<64>(stream, p, kv_format, num_multiprocessors);
  }
}

std::size_t decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim, int num_heads) {
  return ScratchLayout(max_rows, dim, ff_dim, num_heads).total;
}

std::size_t decoder_blocks_counter_bytes() {
  return sizeof(DecoderCounters);
}

}  // namespace gapless::cuda
