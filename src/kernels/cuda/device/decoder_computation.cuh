// The computing warps of decoder_kernel.cuh.
#pragma once

#include "kernels/cuda/device/decoder_attention.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_experts.cuh"
#include "kernels/cuda/device/decoder_few_rows.cuh"
#include "kernels/cuda/device/decoder_grouped_attention.cuh"
#include "kernels/cuda/device/decoder_outputs.cuh"
#include "kernels/cuda/device/decoder_rows.cuh"
#include "kernels/cuda/device/decoder_scales.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/self_announcing.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// The computing warps' way through the launch.
template <typename S, PreparedFormat kFormat, int kRows, typename CacheElement>
class Computation {
  using AllPhases = std::make_integer_sequence<int, ScheduleOf<S>::kNumPhases>;
  using Sums = ProductSums<S, kFormat, kRows>;
  using SumBiases = Biases<Sums::kAtOnce>;
  // Whether all of a layer's products are computed in one place, otherwise those of whole columns.
  static constexpr bool kInOnePlace = S::kHasExperts && kXFromMemory<kRows>;
  GAPLESS_HOST_DEVICE static constexpr bool is_in_place(const Phase& phase) {
    return phase.kind == PhaseKind::kProduct ||
           (kInOnePlace && phase.kind == PhaseKind::kPartialSums);
  }
  // Of these those before a phase.
  GAPLESS_HOST_DEVICE static constexpr int in_place_before(int phase) {
    return kInOnePlace ? products_before<S>(phase) : whole_products_before<S>(phase);
  }
  static constexpr int kNumInPlace = in_place_before(ScheduleOf<S>::kNumPhases);
  // Where registers are not exchanged, with more than 16 rows, a thread of a sequential block has none left beside weights in 8 bits for
  // which product it is, and beside keys in 8 bits none for the layer. It looks them up. (Who does not is left as it was, in branches of
  // its own: even through a function that hands on what it is given, weights in 16 bits had 24 bytes in memory.)
  static constexpr bool kLooksUpProduct =
      S::kIsSequential && !kHasRegisterExchange && kRows > 16 && kFormat != PreparedFormat::kNative;
  static constexpr bool kLooksUpLayer = kLooksUpProduct && sizeof(CacheElement) == 1;

 public:
  __device__ explicit Computation(const DecoderBlockState<S>& block)
      : block_(block),
        p_(block.p),
        x_ring_(block.template x_ring<kFormat, kRows>()),
        has_row_(blockIdx.x < static_cast<unsigned>(block.p.num_rows)),
        layer_(block.small),
        at_(block.small) {}

  __device__ __forceinline__ void run() {
    wait_for_predecessor();
    do_norm<Value::kNone, S::kSchedule.first.writes>(-1);
    // Products are computed in one place, or those of whole columns: they are large, and inlined.
    ComputingCounts::Count<1> product(block_.small);
    for (layer_.set(0); layer_.get() <= p_.num_layers; layer_.set(layer_.get() + 1)) {
      if (layer_.get() == p_.num_layers && p_.head_weights == nullptr) break;
#pragma unroll 1
      for (product.set(0); product.get() < kNumInPlace; product.set(product.get() + 1)) {
        constexpr Phase kLast = S::kSchedule.last;
        Phase phase = kLast;
        const int l = layer_.get();
        const bool is_last = l == p_.num_layers;
        if (!is_last) prepare_product(l, product.get(), phase, AllPhases());
        if constexpr (kInOnePlace) {
          const bool of_experts = !is_last && has_experts(p_, l);
          stage_ =
              FewRowProducts<kFormat>(block_, few_row_product(phase, of_experts), l).run(stage_);
        } else {
          bool is_done = false;
          if constexpr (S::kHasExperts) {
            is_done = phase.matrix == Matrix::kInner && has_experts(p_, l);
            // Both products, which follow each other.
            if (is_done) stage_ = ExpertProducts<kFormat, kRows>(block_, l).run(stage_);
          }
          if constexpr (kLooksUpProduct) {
            if constexpr (kLooksUpLayer) {
              if (!is_done) multiply(CountedMatrix{block_}, CountedLayer{block_});
            } else {
              if (!is_done) multiply(CountedMatrix{block_}, l);
            }
          } else {
            if (!is_done) multiply(phase.matrix, l);
          }
        }
        if (kHasRegisterExchange ? is_last : layer_.get() == p_.num_layers) return;
        go_on(product.get(), AllPhases());
      }
    }
  }

 private:
  // A layer's products in that place are counted. Before one: what it waits for.
  template <int... kIndices>
  __device__ __forceinline__ void prepare_product(
      int l, int product, Phase& phase, std::integer_sequence<int, kIndices...> /*phases*/) {
    (prepare_phase<kIndices>(l, product, phase), ...);
  }
  template <int kIndex>
  __device__ __forceinline__ void prepare_phase(int l, int product, Phase& phase) {
    constexpr Phase kPhase = S::kSchedule.layer[kIndex];
    if constexpr (is_in_place(kPhase)) {
      constexpr int kProduct = in_place_before(kIndex);
      if (product != kProduct) return;
      wait_for<S, kPhase.reads[0], kRows>(block_, l);
      phase = kPhase;
    }
  }
  // Behind one: all phases up to the next one.
  template <int... kIndices>
  __device__ __forceinline__ void go_on(int product,
                                        std::integer_sequence<int, kIndices...> phases) {
    if constexpr (kHasRegisterExchange) {
      (go_on_if<kIndices>(product == product_before(kIndices)), ...);
    } else {
      go_on_behind<0>(product, phases);
    }
  }
  // In none of the phases anyone has to know which product it was.
  template <int kProduct, int... kIndices>
  __device__ __forceinline__ void go_on_behind(int product,
                                               std::integer_sequence<int, kIndices...> phases) {
    if (product == kProduct) {
      (go_on_if<kIndices, kProduct == product_before(kIndices)>(true), ...);
    } else if constexpr (kProduct + 1 < kNumInPlace) {
      go_on_behind<kProduct + 1>(product, phases);
    }
  }
  // The product in that place, or the last one before a phase.
  GAPLESS_HOST_DEVICE static constexpr int product_before(int phase) {
    return in_place_before(phase) - (is_in_place(S::kSchedule.layer[phase]) ? 0 : 1);
  }
  template <int kIndex, bool kMay = true>
  __device__ __forceinline__ void go_on_if(bool does) {
    if constexpr (kMay) {
      if constexpr (kLooksUpLayer) {
        if (does) go_on_phase<kIndex>(CountedLayer{block_});
      } else {
        if (does) go_on_phase<kIndex>(layer_.get());
      }
    }
  }
  template <int kIndex, typename Layer>
  __device__ __forceinline__ void go_on_phase(Layer l) {
    constexpr Phase kPhase = S::kSchedule.layer[kIndex];
    constexpr bool kIsInPlace = is_in_place(kPhase);
    static_assert(kIsInPlace || kIndex > 0, "a layer begins with such a product");
    if constexpr (S::kHasExperts &&
                  (kPhase.writes == Value::kInner || kPhase.reads[0] == Value::kInner)) {
      // What the first makes has been announced, if it is counted, and the second says itself that it is there.
      if (has_experts(p_, l)) return;
    }
    if constexpr (kPhase.kind == PhaseKind::kNorm) {
      if constexpr (S::kHasExperts) leave_route(l);
      do_norm<kPhase.reads[0], kPhase.writes>(l);
      return;
    }
    if constexpr (!kIsInPlace) {
      wait_for<S, kPhase.reads[0], kRows>(block_, l);
      wait_for<S, kPhase.reads[1], kRows>(block_, l);
    }
    if constexpr (kPhase.kind == PhaseKind::kAttention) attend(l);
    if constexpr (kPhase.kind == PhaseKind::kCombine) combine(l);
    if constexpr (kPhase.kind == PhaseKind::kPartialSums && !kIsInPlace) {
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
      if (is_inner(matrix)) return ff_norm_of<kFormat, kRows>(p_, l).data();
    }
    return norm_of<S, kFormat, kRows>(p_, l).data();
  }

  __device__ SumBiases biases_of(Matrix matrix, const DecoderLayer& layer, int first_column) const {
    if constexpr (S::kIsSequential) return SumBiases(nullptr, 0, 0);
    if (matrix == Matrix::kQkv) return SumBiases(layer.qkv_bias, first_column, 3 * p_.dim);
    if (matrix == Matrix::kHead) return SumBiases(p_.head_bias, first_column, p_.vocab);
    return SumBiases(layer.fc1_bias, first_column - 3 * p_.dim, p_.ff_dim);
  }

  // Which of the products in that place is at hand: looked up in shared memory each time.
  struct CountedMatrix {
    const DecoderBlockState<S>& block;

    __device__ __forceinline__ operator Matrix() const {
      if (ComputingCounts::Count<0>(block.small).get() == block.p.num_layers) {
        return S::kSchedule.last.matrix;
      }
      return matrix_of(ComputingCounts::Count<1>(block.small).get(), AllPhases());
    }
  };
  // The layer, in the same way.
  struct CountedLayer {
    const DecoderBlockState<S>& block;

    __device__ __forceinline__ operator int() const {
      return ComputingCounts::Count<0>(block.small).get();
    }
  };
  template <int... kIndices>
  static __device__ __forceinline__ Matrix
  matrix_of(int product, std::integer_sequence<int, kIndices...> /*phases*/) {
    Matrix matrix = S::kSchedule.last.matrix;
    ((is_in_place(S::kSchedule.layer[kIndices]) && product == in_place_before(kIndices)
          ? void(matrix = S::kSchedule.layer[kIndices].matrix)
          : void()),
     ...);
    return matrix;
  }

  // Whole columns of the normalised row's products. `matrix`: a Matrix or a CountedMatrix; `l`: an int or a CountedLayer.
  template <typename Which, typename Layer>
  __device__ void multiply(Which matrix, Layer l) {
    const DecoderLayer& layer = p_.layers[matrix == Matrix::kHead ? 0 : l];
    constexpr PhaseKind kKind = PhaseKind::kProduct;
    [[maybe_unused]] int next_scale_part = 0;
    if constexpr (S::kHasExperts) next_scale_part = blockIdx.x * p_.experts.parts_per_block;
    const ProductUnit first = block_.computing_work().first_unit(kKind, matrix);
    for (at_.set(first.at); DecoderWork::has(unit_now(kKind, matrix, first));
         next_unit(kKind, matrix, first)) {
      const Columns before = columns_of(matrix, first);
      const SumBiases biases = biases_of(matrix, layer, before.tiles.begin * kTileRows);
      Sums sums;
      sums.multiply(before.tiles.size(), block_.ring, stage_, x_ring_, x_stage_,
                    {normalised(matrix, l), before.chunks, {}}, p_.num_rows);
      const Columns of = again(before, [&] { return columns_of(matrix, first); });
      const TileRange tiles = of.tiles;
      const int first_column = tiles.begin * kTileRows;
      ScaleWeights scale_weights;
      if constexpr (S::kHasExperts) {
        if (matrix == Matrix::kQkv) {
          scale_weights.load(p_, p_.experts.layers[l].scale_products, first_column);
        }
      }
      sums.add_up(tiles.size(), stage_, block_.reduce_buffer,
                  [&](int t, int row, int tile_row, auto& added) {
                    if constexpr (!S::kIsSequential) {
#pragma unroll
                      for (int i = 0; i < Sums::kAtOnce; ++i) added[i] += biases.of(t, i);
                    }
                    if constexpr (S::kHasExperts) {
                      if (matrix == Matrix::kQkv && row < p_.num_rows) {
                        keep_scaled(block_.small.experts, t * kTileRows + tile_row, row, added[0]);
                      }
                    }
                    if constexpr (S::kIsSequential && Sums::kAtOnce == 1) {
                      if (is_inner(matrix)) added[0] = gate_with_neighbour(added[0]);
                      if (is_inner(matrix) && tile_row % 2 != 0) return;
                    }
                    if (row >= p_.num_rows) return;
                    store_product<S, kFormat, kRows>(p_, matrix, afresh(int{l}),
                                                     first_column + t * kTileRows + tile_row, row,
                                                     added);
                  });
      stage_ += of.chunks.size();
      x_stage_ += of.chunks.size();
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
      using Layout = DecoderLayout<S>;
      // Units of a part stay in the ring until the last is there, and one may not begin where another's end is too near.
      static_assert((Layout::kRingBytes != 0 ? Layout::kRingBytes : Layout::kSmallestRingBytes) -
                        kXRingBytes<S, kFormat, kRows> >=
                    (kMaxUnitsOfPart + 1) * UnitShape<S, CacheElement>::kBytes);
      attend_to_groups<CacheElement>(p_, l, qkv_of<S>(p_, l), block_.small.rows, block_.ring,
                                     stage_, block_.reduce_buffer, block_.small.arrived);
    } else {
      attend_to_units<S, CacheElement, kRows>(p_, l, p_.layers[l], qkv_of<S>(p_, l),
                                              block_.small.rows, block_.ring, stage_, unit_query());
    }
    if constexpr (S::kHasExperts) {
      // Who waits for all parts learns that nobody reads the layer's router logits and choices any more, and of the first layer that the
      // memory of the parts of logits is empty.
      if (l == 0) wait_barrier(shared_address(&block_.small.experts.logits_emptied), 0);
      if (has_experts(p_, l)) wait_for_choices(block_, l);
    }
    stage_ += block_.small.rows.num_units();
    // Warpgroups must not look for stages before those of the attention are used up; nor may a product use the reduce buffer while queries
    // lie there.
    if constexpr (kByWarpgroups<S, kRows> || kSharesQueries) named_barrier(1, kProductThreads);
  }

  // Whether queries of a pair of heads lie in the reduce buffer.
  static constexpr bool kSharesQueries = kHasFewRegisters<kRows> && !S::kIsSequential;
  __device__ auto unit_query() const {
    if constexpr (kSharesQueries) {
      static_assert(SharedUnitQuery<CacheElement>::kWarpBytes * kProductWarps <= kReduceBytes);
      return SharedUnitQuery<CacheElement>{shared_address(block_.reduce_buffer)};
    } else {
      return UnitQuery<CacheElement>();
    }
  }

  __device__ void combine(int l) {
    const auto wide = wide_of<S, kFormat, kRows>(p_, l);
    if constexpr (S::kIsSequential) {
      combine_groups<S, CacheElement>(p_, block_.small.rows, wide);
    } else if constexpr (S::kHasExperts) {
      combine_groups<S, CacheElement>(p_, block_.small.rows, wide);
    } else {
      combine_units<CacheElement>(p_, block_.small.rows, wide);
    }
  }

  // Shares of a product's columns.
  template <Matrix kMatrix, Value kFirst, Value kSecond, Value kSums, typename Layer>
  __device__ void add_up(Layer l) {
    constexpr PhaseKind kKind = PhaseKind::kPartialSums;
    const ProductUnit first = block_.computing_work().first_unit(kKind, kMatrix);
    for (at_.set(first.at); DecoderWork::has(unit_now(kKind, kMatrix, first));
         next_unit(kKind, kMatrix, first)) {
      const Share before = share_of<kMatrix, kFirst, kSecond>(first);
      Sums sums;
      sums.multiply(before.tiles.size(), block_.ring, stage_, x_ring_, x_stage_,
                    {wide_of<S, kFormat, kRows>(p_, l).data(), before.first, before.second},
                    p_.num_rows);
      const Share of = again(before, [&] { return share_of<kMatrix, kFirst, kSecond>(first); });
      const TileRange tiles = of.tiles;
      const int rank = of.rank;
      sums.add_up(tiles.size(), stage_, block_.reduce_buffer,
                  [&](int t, int row, int tile_row, const auto& added) {
                    const int column = (tiles.begin + t) * kTileRows + tile_row;
                    if (row >= p_.num_rows) return;
                    if constexpr (S::kHasExperts && kSums == Value::kFfSums) {
                      announce_dense<kRows>(p_, l, rank, row, column, added[0]);
                      return;
                    }
                    announce_values(sums_of<kSums, kRows>(p_, afresh(l), rank, row, column),
                                    sums_of<kSums, kRows>(p_, afresh(l) + 1, rank, row, column),
                                    added);
                  });
      stage_ += of.first.size() + of.second.size();
      x_stage_ += of.first.size() + of.second.size();
    }
  }

  // ---- Units of a product. Where registers are not exchanged a thread keeps nothing of them while it multiplies: before and behind that it
  // works out what a unit is.

  __device__ __forceinline__ ProductUnit unit_now(PhaseKind kind, Matrix matrix,
                                                  const ProductUnit& first) const {
    int end = first.end;
    if constexpr (!kHasRegisterExchange) end = block_.computing_work().first_unit(kind, matrix).end;
    return {at_.get(), end};
  }
  __device__ __forceinline__ void next_unit(PhaseKind kind, Matrix matrix,
                                            const ProductUnit& first) {
    ProductUnit unit = unit_now(kind, matrix, first);
    block_.computing_work().next(kind, unit);
    at_.set(unit.at);
  }

  // What was known before a product, or the same worked out again.
  template <typename Known, typename WorkOut>
  static __device__ __forceinline__ Known again(const Known& before, const WorkOut& work_out) {
    if constexpr (kHasRegisterExchange) return before;
    return work_out();
  }

  // Whole columns.
  struct Columns {
    TileRange tiles;
    ChunkRange chunks;
  };
  __device__ __forceinline__ Columns columns_of(Matrix matrix, const ProductUnit& first) const {
    constexpr PhaseKind kKind = PhaseKind::kProduct;
    const ProductUnit unit = unit_now(kKind, matrix, first);
    const DecoderWork work = block_.computing_work();
    return {work.tiles_of(kKind, unit), work.chunks_of(Value::kNorm, unit)};
  }
  // A share of columns.
  struct Share {
    TileRange tiles;
    int rank;
    ChunkRange first, second;
  };
  template <Matrix kMatrix, Value kFirst, Value kSecond>
  __device__ __forceinline__ Share share_of(const ProductUnit& first) const {
    constexpr PhaseKind kKind = PhaseKind::kPartialSums;
    const ProductUnit unit = unit_now(kKind, kMatrix, first);
    const DecoderWork work = block_.computing_work();
    return {work.tiles_of(kKind, unit), work.rank_of(unit), work.chunks_of(kFirst, unit),
            work.chunks_of(kSecond, unit)};
  }

  const DecoderBlockState<S>& block_;
  const DecoderLaunch& p_;
  const XRingOf<kRows> x_ring_;
  const bool has_row_;
  ComputingCounts::Count<0> layer_;
  ComputingCounts::Count<2> at_;  // where the unit of the product at hand begins
  unsigned stage_ = 0;            // of the ring
  unsigned x_stage_ = 0;          // of those, products'
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
