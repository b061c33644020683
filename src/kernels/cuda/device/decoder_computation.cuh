// The computing warps of decoder_kernel.cuh.
#pragma once

#include "kernels/cuda/device/decoder_attention.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_experts.cuh"
#include "kernels/cuda/device/decoder_grouped_attention.cuh"
#include "kernels/cuda/device/decoder_rows.cuh"
#include "kernels/cuda/device/decoder_scales.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/self_announcing.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

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

// A column of the prepared matrix that its product is part of.
template <typename S, PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void store_product(const DecoderLaunch& p, Matrix matrix, int layer,
                                              int column, int row, float sum) {
  if (matrix == Matrix::kQkv) {
    const std::int64_t at = qkv_numbers<S>(p, row) + column;
    announce_value(qkv_of<S>(p, layer) + at, qkv_of<S>(p, layer + 1) + at,
                   __float2bfloat16_rn(sum));
  } else if (matrix == Matrix::kInner) {
    const Activations<kFormat, kRows> wide = wide_of<S, kFormat, kRows>(p, layer);
    if constexpr (S::kIsSequential) {
      // Gated already.
      const DecoderSizes sizes = sizes_of<S>(p);
      wide.store(row, sizes.q_width + (column - sizes.qkv_width) / 2, sum);
    } else {
      wide.store(row, column - 2 * p.dim, gelu_tanh(sum));
    }
  } else if (column < p.vocab) {
    p.logits[std::int64_t{row} * p.vocab + column] = sum;
  }
}

// Rows of gate and up alternate in the prepared matrix, and lie in neighbouring lanes' sums. The gate's lane gets what
// goes into the last product.
__device__ __forceinline__ float gate_with_neighbour(float sum) {
  const float up = __shfl_xor_sync(kFullWarp, sum, 1);
  return sum / (1.0f + __expf(-sum)) * up;
}

// The computing warps' way through the launch.
template <typename S, PreparedFormat kFormat, int kRows, typename CacheElement>
class Computation {
  using AllPhases = std::make_integer_sequence<int, ScheduleOf<S>::kNumPhases>;
  static constexpr int kNumWhole = whole_products_before<S>(ScheduleOf<S>::kNumPhases);

 public:
  __device__ explicit Computation(const DecoderBlockState<S>& block)
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
        bool is_done = false;
        if constexpr (S::kHasExperts) {
          is_done = matrix == Matrix::kInner && has_experts(p_, l);
          if (is_done) stage_ = multiply_up<kFormat, kRows>(block_, l, stage_);
        }
        if (!is_done) multiply(matrix, l);
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
      wait_for<S, kPhase.reads[0], kRows>(block_, l);
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
      if constexpr (S::kHasExperts) leave_route(l);
      do_norm<kPhase.reads[0], kPhase.writes>(l);
      return;
    }
    if constexpr (!kIsProduct) {
      wait_for<S, kPhase.reads[0], kRows>(block_, l);
      wait_for<S, kPhase.reads[1], kRows>(block_, l);
    }
    if constexpr (kPhase.kind == PhaseKind::kAttention) attend(l);
    if constexpr (kPhase.kind == PhaseKind::kCombine) combine(l);
    if constexpr (S::kHasExperts && kPhase.reads[0] == Value::kInner) {
      if (has_experts(p_, l)) {
        stage_ = multiply_down<kFormat, kRows>(block_, l, stage_);
        announce<S, kPhase.writes, kRows>(block_, l);
        return;
      }
    }
    if constexpr (kPhase.kind == PhaseKind::kPartialSums) {
      add_up<kPhase.matrix, kPhase.reads[0], kPhase.reads[1], kPhase.writes>(l);
    }
    announce<S, kPhase.writes, kRows>(block_, l);
  }

  // This warp is through with what the route warp writes for a layer.
  __device__ __forceinline__ void leave_route(int l) const {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) leave_layer(block_);
    if (threadIdx.x > 0 || has_experts(p_, l)) return;
    for (int i = 0; i < kRouteCounters<kRows>; ++i) leave_layer(block_);
  }

  template <Value kRead>
  __device__ __forceinline__ void finish(int l, int row) const {
    if constexpr (S::kHasExperts) {
      finish_row<kFormat, kRows, kRead != Value::kNone>(block_, l, row);
    } else {
      finish_row<kFormat, kRows, kRead>(block_, l, row);
    }
  }

  template <Value kRead, Value kWritten>
  __device__ __forceinline__ void do_norm(int l) {
    if (!has_row_) return;
    if constexpr (kOneRowPerBlock) {
      finish<kRead>(l, blockIdx.x);
    } else {
#pragma unroll 1
      for (int row = blockIdx.x; row < p_.num_rows; row += gridDim.x) {
        finish<kRead>(l, row);
      }
    }
    announce<S, kWritten, kRows>(block_, l);
  }

  __device__ const Bf16* normalised(Matrix matrix, int l) const {
    if constexpr (S::kIsSequential) {
      if (matrix == Matrix::kInner) return ff_norm_of<kFormat, kRows>(p_, l).data();
    }
    return norm_of<kFormat, kRows>(p_, l).data();
  }

  __device__ Biases biases_of(Matrix matrix, const DecoderLayer& layer, int first_column) const {
    if constexpr (S::kIsSequential) return Biases(nullptr, 0, 0);
    return matrix == Matrix::kQkv     ? Biases(layer.qkv_bias, first_column, 3 * p_.dim)
           : matrix == Matrix::kInner ? Biases(layer.fc1_bias, first_column - 3 * p_.dim, p_.ff_dim)
                                      : Biases(p_.head_bias, first_column, p_.vocab);
  }

  // Whole columns of the normalised row's products.
  __device__ void multiply(Matrix matrix, int l) {
    const DecoderLayer& layer = p_.layers[matrix == Matrix::kHead ? 0 : l];
    constexpr PhaseKind kKind = PhaseKind::kProduct;
    const DecoderWork& work = block_.work;
    [[maybe_unused]] int next_scale_part = 0;
    if constexpr (S::kHasExperts) next_scale_part = blockIdx.x * p_.experts.parts_per_block;
    for (ProductUnit unit = work.first_unit(kKind, matrix); work.has(unit);
         work.next(kKind, unit)) {
      const TileRange tiles = work.tiles_of(kKind, unit);
      const int first_column = tiles.begin * kTileRows;
      const XSource x{normalised(matrix, l), work.chunks_of(Value::kNorm, unit), {}};
      const Biases biases = biases_of(matrix, layer, first_column);
      Accumulators<kRows> sums = {};
      // Up to 8 rows there are registers enough to ask for them before the product.
      ScaleWeights scale_weights;
      const auto load_scale_weights = [&] {
        if constexpr (S::kHasExperts) {
          if (matrix == Matrix::kQkv) {
            scale_weights.load(p_, p_.experts.layers[l].scale_products, first_column);
          }
        }
      };
      if constexpr (kXFromMemory<kRows>) load_scale_weights();
      multiply_tiles<kFormat, kRows>(tiles.size(), block_.ring, stage_, x, p_.num_rows, sums);
      if constexpr (!kXFromMemory<kRows>) load_scale_weights();
      reduce_warps<kRows>(
          sums, tiles.size(), turn(stage_), block_.reduce_buffer,
          [&](int t, int row, int tile_row, float sum) {
            if constexpr (S::kHasExperts) {
              if (matrix == Matrix::kQkv && row < p_.num_rows) {
                keep_scaled(block_.small.experts, t * kTileRows + tile_row, row, sum + biases[t]);
              }
            }
            if constexpr (S::kIsSequential) {
              if (matrix == Matrix::kInner) sum = gate_with_neighbour(sum);
              if (matrix == Matrix::kInner && tile_row % 2 != 0) return;
            }
            if (row >= p_.num_rows) return;
            store_product<S, kFormat, kRows>(p_, matrix, l, first_column + t * kTileRows + tile_row,
                                             row, S::kIsSequential ? sum : sum + biases[t]);
          });
      stage_ += x.size();
      if constexpr (S::kHasExperts) {
        if (matrix == Matrix::kQkv) {
          announce_scale_part<kRows>(p_, l, next_scale_part++, tiles.size(), scale_weights,
                                     block_.small.experts);
          // The next unit's numbers come to the same place.
          named_barrier(1, kProductThreads);
        }
      }
    }
    if constexpr (S::kHasExperts) {
      const int end = (static_cast<int>(blockIdx.x) + 1) * p_.experts.parts_per_block;
      for (; matrix == Matrix::kQkv && next_scale_part < end; ++next_scale_part) {
        announce_no_scale_part(p_, l, next_scale_part);
      }
    }
  }

  __device__ void attend(int l) {
    wait_barrier(shared_address(&block_.small.rows_ready), 0);
    if constexpr (S::kIsSequential) {
      attend_to_groups<CacheElement>(p_, l, qkv_of<S>(p_, l), block_.small.rows, block_.ring,
                                     stage_, block_.reduce_buffer);
    } else {
      attend_to_units<S, CacheElement, kRows>(p_, l, p_.layers[l], qkv_of<S>(p_, l),
                                              block_.small.rows, block_.ring, stage_);
    }
    if constexpr (S::kHasExperts) {
      // Who waits for all parts learns that nobody reads the layer's router logits any more, and of the first layer that the
      // memory of the parts of logits is empty.
      if (l == 0) wait_barrier(shared_address(&block_.small.experts.logits_emptied), 0);
      if (has_experts(p_, l)) wait_for_route(block_, l);
    }
    stage_ += block_.small.rows.num_units();
  }

  __device__ void combine(int l) {
    const Activations<kFormat, kRows> wide = wide_of<S, kFormat, kRows>(p_, l);
    if constexpr (S::kIsSequential) {
      combine_groups<S, CacheElement>(p_, block_.small.rows, wide);
    } else if constexpr (S::kHasExperts) {
      combine_groups<S, CacheElement>(p_, block_.small.rows, wide);
    } else {
      combine_units<CacheElement>(p_, block_.small.rows, wide);
    }
  }

  // Shares of a product's columns.
  template <Matrix kMatrix, Value kFirst, Value kSecond, Value kSums>
  __device__ void add_up(int l) {
    constexpr PhaseKind kKind = PhaseKind::kPartialSums;
    const DecoderWork& work = block_.work;
    for (ProductUnit unit = work.first_unit(kKind, kMatrix); work.has(unit);
         work.next(kKind, unit)) {
      const TileRange tiles = work.tiles_of(kKind, unit);
      const int rank = work.rank_of(unit);
      const XSource x{wide_of<S, kFormat, kRows>(p_, l).data(), work.chunks_of(kFirst, unit),
                      work.chunks_of(kSecond, unit)};
      Accumulators<kRows> sums = {};
      multiply_tiles<kFormat, kRows>(tiles.size(), block_.ring, stage_, x, p_.num_rows, sums);
      reduce_warps<kRows>(sums, tiles.size(), turn(stage_), block_.reduce_buffer,
                          [&](int t, int row, int tile_row, float sum) {
                            const int column = (tiles.begin + t) * kTileRows + tile_row;
                            if (row >= p_.num_rows) return;
                            if constexpr (S::kHasExperts && kSums == Value::kFfSums) {
                              announce_dense(l, rank, row, column, sum);
                              return;
                            }
                            announce_value(sums_of<kSums, kRows>(p_, l, rank, row, column),
                                           sums_of<kSums, kRows>(p_, l + 1, rank, row, column),
                                           sum);
                          });
      stage_ += x.size();
    }
  }

  // A dense layer's share of a sum lies where a layer with experts has the one of an expert; those of further experts are zeros.
  __device__ __forceinline__ void announce_dense(int l, int rank, int row, int column,
                                                 float sum) const {
    for (int at = rank; at < p_.experts.experts_per_token; at += kDecoderColumnRanks) {
      announce_value(ff_sums_of<kRows>(p_, l, at, row, column),
                     ff_sums_of<kRows>(p_, l + 1, at, row, column), at == rank ? sum : 0.0f);
    }
  }

  const DecoderBlockState<S>& block_;
  const DecoderLaunch& p_;
  const bool has_row_;
  unsigned stage_ = 0;  // of the ring
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
