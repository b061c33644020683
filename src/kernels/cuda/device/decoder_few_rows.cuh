// All products of a decoder with experts in a step of up to 8 rows, by the computing warps of decoder_kernel.cuh: one code for all
// of them (compact_product.cuh says why).
#pragma once

#include "kernels/cuda/device/compact_product.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_experts.cuh"
#include "kernels/cuda/device/decoder_outputs.cuh"
#include "kernels/cuda/device/decoder_scales.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Products of a layer, and the one behind the last. Of experts: gates and ups, and what brings them back.
enum class FewRowProduct { kQkv, kProj, kInner, kFf, kUp, kDown, kHead };

__device__ __forceinline__ FewRowProduct few_row_product(const Phase& phase, bool of_experts) {
  using Product = FewRowProduct;
  switch (phase.matrix) {
    case Matrix::kQkv:
      return Product::kQkv;
    case Matrix::kInner:
      return of_experts ? Product::kUp : Product::kInner;
    case Matrix::kOutput:
      return phase.reads[0] == Value::kAttention ? Product::kProj
             : of_experts                        ? Product::kDown
                                                 : Product::kFf;
    default:
      return Product::kHead;
  }
}

template <PreparedFormat kFormat>
class FewRowProducts {
  using S = ExpertsDecoder;
  static constexpr int kRows = 8;
  using Product = FewRowProduct;

 public:
  __device__ __forceinline__ FewRowProducts(const DecoderBlockState<S>& block, Product product,
                                            int layer)
      : block_(block),
        p_(block.p),
        experts_(block, layer),
        product_(product),
        kind_(is_any_of(Product::kProj, Product::kFf) ? PhaseKind::kPartialSums
                                                      : PhaseKind::kProduct),
        layer_(layer) {}

  // This block's units. Returns the ring's next stage.
  __device__ __forceinline__ unsigned run(unsigned stage) {
    if (of_experts()) wait_for_route(block_, layer_);
    const ExpertProduct of_expert = product_ == Product::kUp ? expert_up(p_) : expert_down(p_);
    ExpertUnits expert_units(product_ == Product::kUp ? route().up : route().down, of_expert.tiles);
    ProductUnit unit = block_.work.first_unit(kind_, matrix());
    CompactProduct<kFormat, kRows, 1> product;
    Unit next = {};
    const auto find = [&] {
      if (of_experts()) {
        if (expert_units.has()) find_unit(expert_units, of_expert.chunks, next);
        return expert_units.has();
      }
      if (DecoderWork::has(unit)) find_unit(unit, next);
      return DecoderWork::has(unit);
    };
    const auto advance = [&] {
      if (of_experts()) {
        expert_units.next();
      } else {
        block_.work.next(kind_, unit);
      }
    };
    int scale_part = static_cast<int>(blockIdx.x) * p_.experts.parts_per_block;
    bool has_unit = find();
    if (has_unit) product.ask(next.rows, stage, next.chunks);
#pragma unroll 1
    while (has_unit) {
      const Unit now = next;
      const Biases<1> biases = biases_of(now.first_column);
      ScaleWeights scale_weights = {};
      if (product_ == Product::kQkv) {
        scale_weights.load(p_, p_.experts.layers[layer_].scale_products, now.first_column);
      }
      product.multiply(block_.ring, now.num_tiles);
      stage += now.chunks;
      advance();
      has_unit = find();
      // On their way while sums are added up.
      if (has_unit) product.ask(next.rows, stage, next.chunks);
      product.reduce(now.num_tiles, block_.reduce_buffer,
                     [&](int t, int row, int tile_row, float sum) {
                       use(now, now.first_column + t * kTileRows + tile_row,
                           t * kTileRows + tile_row, row, sum, biases.of(t, 0));
                     });
      if (product_ == Product::kQkv) {
        announce_scale_part<kRows>(p_, layer_, scale_part++, now.num_tiles, scale_weights,
                                   block_.small.experts);
        // The next unit's numbers come to the same place.
        named_barrier(1, kProductThreads);
      }
    }
    const int end = (static_cast<int>(blockIdx.x) + 1) * p_.experts.parts_per_block;
    for (; product_ == Product::kQkv && scale_part < end; ++scale_part) {
      announce_no_scale_part(p_, layer_, scale_part);
    }
    return stage;
  }

 private:
  // Some tiles of a matrix.
  struct Unit {
    LaneRows<1> rows;
    int chunks;
    int num_tiles;
    int first_column;
    int rank;         // of a share of the columns
    ExpertPass pass;  // of experts
  };

  template <typename... Products>
  __device__ bool is_any_of(Products... products) const {
    return ((product_ == products) || ...);
  }
  __device__ bool of_experts() const {
    return is_any_of(Product::kUp, Product::kDown);
  }
  __device__ const ExpertRoute& route() const {
    return block_.small.experts.route;
  }
  __device__ Matrix matrix() const {
    return product_ == Product::kQkv          ? Matrix::kQkv
           : product_ == Product::kHead       ? Matrix::kHead
           : kind_ == PhaseKind::kPartialSums ? Matrix::kOutput
                                              : Matrix::kInner;
  }

  __device__ __forceinline__ void find_unit(const ExpertUnits& units, int chunks,
                                            Unit& unit) const {
    unit.pass = route().passes[units.pass()];
    unit.rows = experts_.rows(product_ == Product::kUp, unit.pass);
    unit.chunks = chunks;
    unit.num_tiles = units.size();
    unit.first_column = units.tile() * kTileRows;
  }
  __device__ __forceinline__ void find_unit(const ProductUnit& from, Unit& unit) const {
    const int lane = always_afresh(threadIdx.x) % kWarp;
    const DecoderWork& work = block_.work;
    const TileRange tiles = work.tiles_of(kind_, from);
    const bool sums = kind_ == PhaseKind::kPartialSums;
    const ChunkRange chunks = work.chunks_of(product_ == Product::kProj ? Value::kAttention
                                             : product_ == Product::kFf ? Value::kInner
                                                                        : Value::kNorm,
                                             from);
    unit.rows.numbers = (sums ? wide_of<S, kFormat, kRows>(p_, layer_).data()
                              : norm_of<S, kFormat, kRows>(p_, layer_).data()) +
                        chunks.begin * (kRows * kProductColumns);
    unit.rows.at[0] = lane / 4 < p_.num_rows ? fragment_index<kRows>(lane / 4, lane % 4 * 2) : -1;
    unit.rows.num_blocks = 1;
    unit.chunks = chunks.size();
    unit.num_tiles = tiles.size();
    unit.first_column = tiles.begin * kTileRows;
    unit.rank = work.rank_of(from);
  }

  __device__ __forceinline__ Biases<1> biases_of(int first_column) const {
    const DecoderLayer& layer = p_.layers[product_ == Product::kHead ? 0 : layer_];
    const int qkv_columns = 3 * p_.dim;
    switch (product_) {
      case Product::kQkv:
        return Biases<1>(layer.qkv_bias, first_column, qkv_columns);
      case Product::kInner:
        return Biases<1>(layer.fc1_bias, first_column - qkv_columns, p_.ff_dim);
      case Product::kHead:
        return Biases<1>(p_.head_bias, first_column, p_.vocab);
      default:
        return Biases<1>(nullptr, 0, 0);
    }
  }

  // A sum of the unit: column of the matrix, column among the unit's.
  __device__ __forceinline__ void use(const Unit& unit, int column, int in_unit, int row, float sum,
                                      float bias) const {
    if (of_experts()) {
      const int pair = row < unit.pass.num_rows ? route().pairs[unit.pass.first + row] : -1;
      experts_.store(product_ == Product::kUp, pair, column, sum);
      return;
    }
    if (row >= p_.num_rows) return;
    if (product_ == Product::kProj) {
      announce_value(sums_of<Value::kSums, kRows>(p_, layer_, unit.rank, row, column),
                     sums_of<Value::kSums, kRows>(p_, layer_ + 1, unit.rank, row, column), sum);
    } else if (product_ == Product::kFf) {
      announce_dense<kRows>(p_, layer_, unit.rank, row, column, sum);
    } else {
      const float sums[1] = {sum + bias};
      if (product_ == Product::kQkv) keep_scaled(block_.small.experts, in_unit, row, sums[0]);
      store_product<S, kFormat, kRows>(p_, matrix(), layer_, column, row, sums);
    }
  }

  const DecoderBlockState<S>& block_;
  const DecoderLaunch& p_;
  const ExpertProducts<kFormat, kRows> experts_;
  const Product product_;
  const PhaseKind kind_;
  const int layer_;
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
