// The computing warps of decoder_kernel.cuh.
#pragma once

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/self_announcing.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Every thread of theirs, after it wrote a value in a layer.
template <Value kValue, int kRows>
__device__ __forceinline__ void announce(const DecoderBlockState& block, int layer) {
  if (!block.counts<kValue, kXFromMemory<kRows>>(layer)) return;
  // The others are read by loads.
  using Of = ScheduleOf<Schedule>;
  if (!kXFromMemory<kRows> && Of::in(Of::kActivations, kValue)) publish_to_copy_engine();
  __syncwarp();
  if (threadIdx.x % kWarp == 0) arrive(block.written(kValue));
}

// All of them, for a value that a layer reads, as far as its counter tells them.
template <Value kValue, int kRows>
__device__ __forceinline__ void wait_for(const DecoderBlockState& block, int layer) {
  if constexpr (kValue != Value::kNone) {
    if (!ScheduleOf<Schedule>::computing_waits<kValue, kXFromMemory<kRows>>(layer)) return;
    if (threadIdx.x == 0) wait_for_count(block.counter(kValue), block.count_of<kValue>(layer));
    named_barrier(1, kProductThreads);
  }
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

// Residual stream and LayerNorm of one of this block's rows, behind the output product of a layer, whose
// sums are kSums; in layer -1 there is none. No LayerNorm where nobody reads it.
template <PreparedFormat kFormat, int kRows, Value kSums>
__device__ void finish_row(const DecoderBlockState& block, int layer, int row) {
  const DecoderLaunch& p = block.p;
  const bool is_last = layer + 1 == p.num_layers;
  const Bf16* gamma = is_last ? p.head_gamma : p.layers[layer + 1].gamma;
  const Bf16* beta = is_last ? p.head_beta : p.layers[layer + 1].beta;
  const int at = afresh(threadIdx.x) * kVector;
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
    wait_for<kSums, kRows>(block, layer);
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
}

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
__device__ __forceinline__ void store_product(const DecoderLaunch& p, Matrix matrix, int layer,
                                              int column, int row, float sum) {
  if (matrix == Matrix::kQkv) {
    const std::int64_t at = std::int64_t{row} * 3 * p.dim + column;
    announce_value(qkv_of(p, layer) + at, qkv_of(p, layer + 1) + at, __float2bfloat16_rn(sum));
  } else if (matrix == Matrix::kInner) {
    wide_of<kFormat, kRows>(p, layer).store(row, column - 2 * p.dim, gelu_tanh(sum));
  } else if (column < p.vocab) {
    p.logits[std::int64_t{row} * p.vocab + column] = sum;
  }
}

// The computing warps' way through the launch.
template <typename S, PreparedFormat kFormat, int kRows, typename CacheElement>
class Computation {
  using AllPhases = std::make_integer_sequence<int, ScheduleOf<S>::kNumPhases>;
  static constexpr int kNumWhole = whole_products_before<S>(ScheduleOf<S>::kNumPhases);

 public:
  __device__ explicit Computation(const DecoderBlockState& block)
      : block_(block),
        p_(block.p),
        has_row_(blockIdx.x < static_cast<unsigned>(block.p.num_rows)) {}

  __device__ void run() {
    wait_for_predecessor();
    do_norm<Value::kNone, S::kSchedule.first.writes>(-1);
    // Products of whole columns are computed in one place: they are large, and inlined.
    for (int l = 0; l <= p_.num_layers; ++l) {
      const bool is_last = l == p_.num_layers;
      if (is_last && p_.head_weights == nullptr) break;
#pragma unroll 1
      for (int product = 0; product < kNumWhole; ++product) {
        Matrix matrix = S::kSchedule.last.matrix;
        if (!is_last) prepare_product(l, product, matrix, AllPhases());
        multiply(matrix, l);
        if (is_last) return;
        go_on(l, product, AllPhases());
      }
    }
  }

 private:
  __device__ unsigned turn(unsigned stage) const {
    return (threadIdx.x / kWarp - stage) % kRingConsumers;
  }

  // A layer's products of whole columns are counted. Before one: what it waits for.
  template <int... kIndices>
  __device__ __forceinline__ void prepare_product(
      int l, int product, Matrix& matrix, std::integer_sequence<int, kIndices...> /*phases*/) {
    (prepare_phase<kIndices>(l, product, matrix), ...);
  }
  template <int kIndex>
  __device__ __forceinline__ void prepare_phase(int l, int product, Matrix& matrix) {
    constexpr Phase kPhase = S::kSchedule.layer[kIndex];
    if constexpr (kPhase.kind == PhaseKind::kProduct) {
      constexpr int kProduct = whole_products_before<S>(kIndex);
      if (product != kProduct) return;
      wait_for<kPhase.reads[0], kRows>(block_, l);
      matrix = kPhase.matrix;
    }
  }
  // Behind one: all phases up to the next one.
  template <int... kIndices>
  __device__ __forceinline__ void go_on(int l, int product,
                                        std::integer_sequence<int, kIndices...> /*phases*/) {
    (go_on_phase<kIndices>(l, product), ...);
  }
  template <int kIndex>
  __device__ __forceinline__ void go_on_phase(int l, int product) {
    constexpr Phase kPhase = S::kSchedule.layer[kIndex];
    constexpr bool kIsProduct = kPhase.kind == PhaseKind::kProduct;
    static_assert(kIsProduct || kIndex > 0, "a layer begins with such a product");
    constexpr int kProduct = whole_products_before<S>(kIndex) - (kIsProduct ? 0 : 1);
    if (product != kProduct) return;
    if constexpr (kPhase.kind == PhaseKind::kNorm) {
      do_norm<kPhase.reads[0], kPhase.writes>(l);
      return;
    }
    if constexpr (!kIsProduct) {
      wait_for<kPhase.reads[0], kRows>(block_, l);
      wait_for<kPhase.reads[1], kRows>(block_, l);
    }
    if constexpr (kPhase.kind == PhaseKind::kAttention) attend(l);
    if constexpr (kPhase.kind == PhaseKind::kCombine) combine(l);
    if constexpr (kPhase.kind == PhaseKind::kPartialSums) {
      add_up<kPhase.matrix, kPhase.reads[0], kPhase.reads[1]>(l);
    }
    announce<kPhase.writes, kRows>(block_, l);
  }

  template <Value kRead, Value kWritten>
  __device__ __forceinline__ void do_norm(int l) {
    if (!has_row_) return;
    if constexpr (kOneRowPerBlock) {
      finish_row<kFormat, kRows, kRead>(block_, l, blockIdx.x);
    } else {
#pragma unroll 1
      for (int row = blockIdx.x; row < p_.num_rows; row += gridDim.x) {
        finish_row<kFormat, kRows, kRead>(block_, l, row);
      }
    }
    announce<kWritten, kRows>(block_, l);
  }

  // Whole columns of the normalised row's products.
  __device__ void multiply(Matrix matrix, int l) {
    const DecoderLayer& layer = p_.layers[matrix == Matrix::kHead ? 0 : l];
    constexpr PhaseKind kKind = PhaseKind::kProduct;
    const DecoderWork& work = block_.work;
    for (ProductUnit unit = work.first_unit(kKind, matrix); work.has(unit);
         work.next(kKind, unit)) {
      const TileRange tiles = work.tiles_of(kKind, unit);
      const int first_column = tiles.begin * kTileRows;
      const XSource x{
          norm_of<kFormat, kRows>(p_, l).data(), work.chunks_of(Value::kNorm, unit), {}};
      const Biases biases =
          matrix == Matrix::kQkv     ? Biases(layer.qkv_bias, first_column, 3 * p_.dim)
          : matrix == Matrix::kInner ? Biases(layer.fc1_bias, first_column - 3 * p_.dim, p_.ff_dim)
                                     : Biases(p_.head_bias, first_column, p_.vocab);
      Accumulators<kRows> sums = {};
      multiply_tiles<kFormat, kRows>(tiles.size(), block_.ring, stage_, x, p_.num_rows, sums);
      reduce_warps<kRows>(sums, tiles.size(), turn(stage_), block_.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            if (row >= p_.num_rows) return;
                            store_product<kFormat, kRows>(p_, matrix, l,
                                                          first_column + t * kTileRows + tile_row,
                                                          row, sum + biases[t]);
                          });
      stage_ += x.size();
    }
  }

  __device__ void attend(int l) {
    wait_barrier(shared_address(&block_.small.rows_ready), 0);
    attend_to_units<CacheElement>(p_, p_.layers[l], qkv_of(p_, l), block_.small.rows, block_.ring,
                                  stage_);
    stage_ += block_.small.rows.own.size();
  }

  __device__ void combine(int l) {
    combine_units<CacheElement>(p_, block_.small.rows, wide_of<kFormat, kRows>(p_, l));
  }

  // Shares of a product's columns.
  template <Matrix kMatrix, Value kFirst, Value kSecond>
  __device__ void add_up(int l) {
    constexpr PhaseKind kKind = PhaseKind::kPartialSums;
    const DecoderWork& work = block_.work;
    for (ProductUnit unit = work.first_unit(kKind, kMatrix); work.has(unit);
         work.next(kKind, unit)) {
      const TileRange tiles = work.tiles_of(kKind, unit);
      const int rank = work.rank_of(unit);
      const XSource x{wide_of<kFormat, kRows>(p_, l).data(), work.chunks_of(kFirst, unit),
                      work.chunks_of(kSecond, unit)};
      Accumulators<kRows> sums = {};
      multiply_tiles<kFormat, kRows>(tiles.size(), block_.ring, stage_, x, p_.num_rows, sums);
      reduce_warps<kRows>(sums, tiles.size(), turn(stage_), block_.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            const int column = (tiles.begin + t) * kTileRows + tile_row;
                            if (row >= p_.num_rows) return;
                            announce_value(sums_of<kRows>(p_, l, rank, row, column),
                                           sums_of<kRows>(p_, l + 1, rank, row, column), sum);
                          });
      stage_ += x.size();
    }
  }

  const DecoderBlockState& block_;
  const DecoderLaunch& p_;
  const bool has_row_;
  unsigned stage_ = 0;  // of the ring
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
