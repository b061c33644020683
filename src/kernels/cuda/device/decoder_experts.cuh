// The experts' products in decoder_kernel.cuh (expert_route.h says who computes what).
//
// A pass' rows are some of the step's, so their activations are read from memory, where they are B fragments already
// (activations.cuh): each lane reads those of its own row for one unit (compact_product.cuh), or all together bring them into shared memory
// for all units of the pass (pass_product.cuh). Weights come through the ring. Products add up as all products of the kernel do,
// and what a row's experts make is kept apart until its norm adds it up: a row's bits are the same whoever is in its passes.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/compact_product.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_rows.cuh"
#include "kernels/cuda/device/pass_product.cuh"
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

template <PreparedFormat kFormat, int kRows>
inline constexpr int kPassBlocks = kPassRows<kRows, kFormat> / 8;

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

// The two products of a layer's experts, by the computing warps: this block's units of the passes.
template <PreparedFormat kFormat, int kRows>
class ExpertProducts {
 public:
  __device__ __forceinline__ ExpertProducts(const DecoderBlockState<ExpertsDecoder>& block,
                                            int layer)
      : block_(block),
        p_(block.p),
        route_(block.small.experts.route),
        wide_(wide_of<ExpertsDecoder, kFormat, kRows>(block.p, layer)),
        layer_(layer) {}

  // This lane's rows of a pass.
  __device__ __forceinline__ LaneRows<kPassBlocks<kFormat, kRows>> rows(
      bool is_up, const ExpertPass& pass) const {
    const int lane = always_afresh(threadIdx.x) % kWarp;
    LaneRows<kPassBlocks<kFormat, kRows>> rows;
    rows.numbers = numbers(is_up);
    rows.num_blocks = (pass.num_rows + 7) / 8;
#pragma unroll
    for (int block = 0; block < kPassBlocks<kFormat, kRows>; ++block) {
      const int i = block * 8 + lane / 4;
      rows.at[block] = -1;
      if (i >= pass.num_rows) continue;
      const int pair = route_.pairs[pass.first + i];
      rows.at[block] = first_number(is_up, pair) +
                       fragment_index<kRows>(ExpertRoute::row_of(pair), lane % 4 * 2);
    }
    return rows;
  }
  // A column of an expert's product. By whole warps, with pair -1 where a pass has no row.
  __device__ __forceinline__ void store(bool is_up, int pair, int column, float sum) const {
    if (is_up) {
      store_gated(pair, column, sum);
    } else {
      announce_sum(pair, column, sum);
    }
  }

  // Both have one code: it is large, and inlined. Returns the ring's next stage.
  __device__ __forceinline__ unsigned run(unsigned stage) const {
    wait_for_route(block_, layer_);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const bool is_up = i == 0;
      if (is_up) {
        wait_for_rows<Value::kNorm, kRows>(block_, layer_);
      } else {
        announce<ExpertsDecoder, Value::kInner, kRows>(block_, layer_);
        wait_for_rows<Value::kInner, kRows>(block_, layer_);
      }
      if constexpr (kInGroups) {
        stage = multiply_in_groups(is_up, stage);
      } else {
        stage = multiply(is_up, stage);
      }
    }
    // Nobody may look for stages of his own before all are through with those of groups.
    if constexpr (kInGroups) named_barrier(1, kProductThreads);
    return stage;
  }

 private:
  static constexpr bool kInGroups = kHasPassRows<ExpertsDecoder, kFormat, kRows>;

  __device__ __forceinline__ unsigned multiply(bool is_up, unsigned stage) const {
    const ExpertProduct product = is_up ? expert_up(p_) : expert_down(p_);
    ExpertUnits units(is_up ? route_.up : route_.down, product.tiles);
    CompactProduct<kFormat, kRows, kPassBlocks<kFormat, kRows>> unit_product;
    const auto ask = [&] {
      if (!units.has()) return;
      unit_product.ask(rows(is_up, route_.passes[units.pass()]), stage, product.chunks);
    };
    ask();
#pragma unroll 1
    while (units.has()) {
      const ExpertPass pass = route_.passes[units.pass()];
      const int num_tiles = units.size(), first_tile = units.tile();
      unit_product.multiply(block_.ring, num_tiles);
      stage += product.chunks;
      units.next();
      ask();
      unit_product.reduce(
          num_tiles, block_.reduce_buffer, [&](int t, int at, int tile_row, float sum) {
            const int pair = at < pass.num_rows ? route_.pairs[pass.first + at] : -1;
            store(is_up, pair, (first_tile + t) * kTileRows + tile_row, sum);
          });
    }
    return stage;
  }

  __device__ __forceinline__ unsigned multiply_in_groups(bool is_up, unsigned stage) const {
    using Rows = PassRows<kRows>;
    using UnitProduct = PassProduct<kFormat, kRows>;
    static_assert(UnitProduct::kExchangeBytes <= kReduceBytes);
    const ExpertProduct product = is_up ? expert_up(p_) : expert_down(p_);
    const Rows rows(block_.ring_data + block_.template stage_bytes<kFormat, kRows>());
    ExpertUnits units(is_up ? route_.up : route_.down, product.tiles);
    UnitProduct unit_product;
    int brought = -1;
#pragma unroll 1
    while (units.has()) {
      const ExpertPass pass = route_.passes[units.pass()];
      if (units.pass() != brought) {
        const int pair = pair_of(pass, Rows::own_row());
        rows.bring(pair < 0 ? nullptr
                            : numbers(is_up) + first_number(is_up, pair) +
                                  Rows::index_of(ExpertRoute::row_of(pair)),
                   product.chunks);
        brought = units.pass();
      }
      unit_product.multiply(block_.ring, stage, product.chunks, units.size(), rows);
      stage += product.chunks;
      const int first_tile = units.tile();
      units.next();
      unit_product.add_up(shared_address(block_.reduce_buffer),
                          [&](int tile, int tile_row, const float(&sums)[2]) {
                            const int column = (first_tile + tile) * kTileRows + tile_row;
                            const int row = static_cast<int>(threadIdx.x) % 4 * 2;
                            if (is_up) {
                              store_gated_pair(pass, row, column, sums);
                            } else {
                              announce_sum(pair_of(pass, row), column, sums[0]);
                              announce_sum(pair_of(pass, row + 1), column, sums[1]);
                            }
                          });
    }
    return stage;
  }

  // -1: the pass has no such row.
  __device__ __forceinline__ int pair_of(const ExpertPass& pass, int row) const {
    return row < pass.num_rows ? route_.pairs[pass.first + row] : -1;
  }

  // What a product multiplies, and where in it begins what a row gives to one of its experts.
  __device__ __forceinline__ const Bf16* numbers(bool is_up) const {
    return is_up ? norm_of<ExpertsDecoder, kFormat, kRows>(p_, layer_).data() : wide_.data();
  }
  __device__ __forceinline__ int first_number(bool is_up, int pair) const {
    const int first_chunk = is_up ? 0
                                  : inner_columns() / kProductColumns +
                                        ExpertRoute::rank_of(pair) * expert_down(p_).chunks;
    return first_chunk * (kRows * kProductColumns);
  }

  // Of `wide`: where what goes into the experts' second products begins.
  __device__ int inner_columns() const {
    return p_.dim;
  }

  __device__ __forceinline__ void store_gated(int pair, int column, float sum) const {
    // Rows of gates and ups alternate.
    const float up = round_to_bf16(__shfl_xor_sync(kFullWarp, sum, 1));
    if (pair < 0 || column % 2 != 0) return;
    store_inner(pair, column / 2, round_to_bf16(sum), up);
  }
  // The same of two rows: a lane has both gates, and the lane that is four further both ups. Each stores one of what they make.
  __device__ __forceinline__ void store_gated_pair(const ExpertPass& pass, int row, int column,
                                                   const float (&sums)[2]) const {
    const bool is_up = column % 2 != 0;
    const float mine = round_to_bf16(is_up ? sums[1] : sums[0]);
    const float other = __shfl_xor_sync(kFullWarp, round_to_bf16(is_up ? sums[0] : sums[1]), 4);
    const int pair = pair_of(pass, row + (is_up ? 1 : 0));
    if (pair < 0) return;
    store_inner(pair, column / 2, is_up ? other : mine, is_up ? mine : other);
  }
  __device__ __forceinline__ void store_inner(int pair, int column, float gate, float up) const {
    wide_.store(ExpertRoute::row_of(pair),
                inner_columns() + ExpertRoute::rank_of(pair) * p_.experts.inner + column,
                activate(Activation::kGeluErf, gate) * (up + 1.0f));
  }

  // What a chosen expert adds to a row.
  __device__ __forceinline__ void announce_sum(int pair, int column, float sum) const {
    if (pair < 0) return;
    const int row = ExpertRoute::row_of(pair), rank = ExpertRoute::rank_of(pair);
    announce_value(ff_sums_of<kRows>(p_, layer_, rank, row, column),
                   ff_sums_of<kRows>(p_, layer_ + 1, rank, row, column),
                   route_.weights[pair] * round_to_bf16(sum));
  }

  const DecoderBlockState<ExpertsDecoder>& block_;
  const DecoderLaunch& p_;
  const ExpertRoute& route_;
  const Activations<kFormat, kRows> wide_;
  const int layer_;
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
