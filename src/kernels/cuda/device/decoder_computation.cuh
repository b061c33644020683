// The computing warps of decoder_kernel.cuh.
#pragma once

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/self_announcing.cuh"

namespace gapless::cuda {

// Every thread of theirs, after it wrote.
template <int kRows>
__device__ void announce(const DecoderBlockState& block, Written what) {
  // The others are read by loads.
  if (!kXFromMemory<kRows> && (what == kInner || what == kAttention || what == kNorm)) {
    publish_to_copy_engine();
  }
  __syncwarp();
  if (threadIdx.x % kWarp == 0) arrive(shared_address(&block.small.written[what]));
}

__device__ inline void wait_together(const GridCounter& counter, unsigned target) {
  if (threadIdx.x == 0) wait_for_count(counter, target);
  named_barrier(1, kProductThreads);
}

template <int kRows>
__device__ float* sums_of(const DecoderLaunch& p, int layer, int rank, int row, int column) {
  return p.sums + (std::int64_t{layer % 2 * kDecoderColumnRanks + rank} * kRows + row) * p.dim +
         column;
}

template <PreparedFormat kFormat, int kRows>
__device__ Activations<kFormat, kRows> norm_of(const DecoderLaunch& p, int layer) {
  return {p.norm, p.dim, layer};
}

template <PreparedFormat kFormat, int kRows>
__device__ Activations<kFormat, kRows> wide_of(const DecoderLaunch& p, int layer) {
  return {p.wide, p.dim + p.ff_dim, layer};
}

// The q, k and v that a layer makes of all rows.
__device__ inline Bf16* qkv_of(const DecoderLaunch& p, int layer) {
  return p.qkv + std::int64_t{layer % 2} * p.num_rows * 3 * p.dim;
}

// Residual stream and LayerNorm of this block's row. `layer`: whose output product is to be added;
// -1: none. gamma == nullptr: no LayerNorm.
template <PreparedFormat kFormat, int kRows>
__device__ void finish_row(const DecoderBlockState& block, int layer, const Bf16* gamma,
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
  const Activations<kFormat, kRows> norm = norm_of<kFormat, kRows>(p, layer + 1);
#pragma unroll
  for (int i = 0; mine && i < kVector; i += 2) {
    const float low = (values[i] - mean) * scale * g[i] + b[i];
    const float high = (values[i + 1] - mean) * scale * g[i + 1] + b[i + 1];
    norm.store_pair(row, at + i, low, high);
  }
  announce<kRows>(block, kNorm);
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

template <PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void store_product(const DecoderLaunch& p, NormProduct kind, int layer,
                                              int column, int row, float sum) {
  if (kind == NormProduct::kQkv) {
    const std::int64_t at = std::int64_t{row} * 3 * p.dim + column;
    announce_value(qkv_of(p, layer) + at, qkv_of(p, layer + 1) + at, __float2bfloat16_rn(sum));
  } else if (kind == NormProduct::kInner) {
    wide_of<kFormat, kRows>(p, layer).store(row, column - 2 * p.dim, gelu_tanh(sum));
  } else if (column < p.vocab) {
    p.logits[std::int64_t{row} * p.vocab + column] = sum;
  }
}

// The computing warps' way through the launch.
template <PreparedFormat kFormat, int kRows, typename CacheElement>
class Computation {
 public:
  __device__ explicit Computation(const DecoderBlockState& block)
      : block_(block),
        p_(block.p),
        has_row_(blockIdx.x < static_cast<unsigned>(block.p.num_rows)) {}

  __device__ void run() {
    wait_for_predecessor();
    if (has_row_) finish_row<kFormat, kRows>(block_, -1, p_.layers[0].gamma, p_.layers[0].beta);
    for (int l = 0; l <= p_.num_layers; ++l) {
      const bool is_head = l == p_.num_layers;
      if (is_head && p_.head_weights == nullptr) break;
      const unsigned everyone = (l + 1) * gridDim.x;
      // The products are called in one place: they are large, and inlined.
#pragma unroll 1
      for (int product = 0; product < 2; ++product) {
        const NormProduct kind = product == 0 ? NormProduct::kQkv : NormProduct::kInner;
        multiply_norm(l, is_head ? NormProduct::kHead : kind);
        if (is_head) return;
        if (kind == NormProduct::kInner) announce<kRows>(block_, kInner);
        if (kind == NormProduct::kQkv) attend(l);
      }
      combine(l, everyone);
      multiply_output(l);
      if (!has_row_) continue;
      const bool is_last = l + 1 == p_.num_layers;
      finish_row<kFormat, kRows>(block_, l, is_last ? p_.head_gamma : p_.layers[l + 1].gamma,
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
    const XSource x{norm_of<kFormat, kRows>(p_, l).data(), {0, p_.dim / kProductColumns}, {}};
    if (kXFromMemory<kRows> && l == 0) wait_together(p_.counters->norm, p_.num_rows);
    for (int tile = tiles.begin; tile < tiles.end; tile += kGroupTiles) {
      const int num_tiles = min(kGroupTiles, tiles.end - tile);
      const Biases biases = kind == NormProduct::kQkv
                                ? Biases(layer.qkv_bias, tile * kTileRows, 3 * p_.dim)
                            : kind == NormProduct::kInner
                                ? Biases(layer.fc1_bias, tile * kTileRows - 3 * p_.dim, p_.ff_dim)
                                : Biases(p_.head_bias, tile * kTileRows, p_.vocab);
      Accumulators<kRows> sums = {};
      multiply_tiles<kFormat, kRows>(num_tiles, block_.ring, stage_, x, p_.num_rows, sums);
      reduce_warps<kRows>(sums, num_tiles, turn(stage_), block_.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            if (row >= p_.num_rows) return;
                            store_product<kFormat, kRows>(p_, kind, l,
                                                          (tile + t) * kTileRows + tile_row, row,
                                                          sum + biases[t]);
                          });
      stage_ += x.size();
    }
  }

  __device__ void attend(int l) {
    if (l == 0) {
      announce<kRows>(block_, kQkv);
      wait_together(p_.counters->qkv, gridDim.x);
    }
    wait_barrier(shared_address(&block_.small.rows_ready), 0);
    attend_to_units<CacheElement>(p_, p_.layers[l], qkv_of(p_, l), block_.small.rows, block_.ring,
                                  stage_);
    stage_ += UnitRange(block_.small.rows, p_.num_rows).size();
    announce<kRows>(block_, kParts);
  }

  __device__ void combine(int l, unsigned everyone) {
    wait_together(p_.counters->parts, everyone);
    combine_units<CacheElement>(p_, block_.small.rows, wide_of<kFormat, kRows>(p_, l));
    announce<kRows>(block_, kAttention);
  }

  __device__ void multiply_output(int l) {
    const DecoderWork& work = block_.work;
    if (kXFromMemory<kRows> && l == 0) {
      wait_together(p_.counters->inner, work.inner_blocks());
      wait_together(p_.counters->attention, gridDim.x);
    }
    for (OutputUnit unit = work.first_output(); work.has(unit); work.next(unit)) {
      const TileRange tiles = work.tiles(unit);
      const int num_tiles = tiles.size();
      const XSource x{wide_of<kFormat, kRows>(p_, l).data(), work.inner_chunks(unit),
                      work.attention_chunks(unit)};
      Accumulators<kRows> sums = {};
      multiply_tiles<kFormat, kRows>(num_tiles, block_.ring, stage_, x, p_.num_rows, sums);
      reduce_warps<kRows>(sums, num_tiles, turn(stage_), block_.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            const int column = (tiles.begin + t) * kTileRows + tile_row;
                            if (row >= p_.num_rows) return;
                            announce_value(sums_of<kRows>(p_, l, unit.rank, row, column),
                                           sums_of<kRows>(p_, l + 1, unit.rank, row, column), sum);
                          });
      stage_ += x.size();
    }
    if (l == 0) announce<kRows>(block_, kSums);
  }

  const DecoderBlockState& block_;
  const DecoderLaunch& p_;
  const bool has_row_;
  unsigned stage_ = 0;  // of the ring
};

}  // namespace gapless::cuda
