// The bodies behind VectorOps, templates over simd_*.h. Included by vector_ops_*.cpp only, each of
// which is compiled for its instruction set.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/kv_index.h"

namespace gapless::cpu {

// body(at, count) over [0, size) in steps of the lanes; count < kLanes in the last one only.
template <typename Simd, typename Body>
[[gnu::always_inline]] inline void for_lanes(int size, Body body) {
  for (int at = 0; at < size; at += Simd::kLanes) {
    body(at, size - at < Simd::kLanes ? size - at : Simd::kLanes);
  }
}

template <typename Simd>
[[gnu::always_inline]] inline typename Simd::Vector load_count(const float* from, int count) {
  return count == Simd::kLanes ? Simd::load(from) : Simd::load_first(from, count);
}

template <typename Simd>
[[gnu::always_inline]] inline void store_count(float* to, typename Simd::Vector v, int count) {
  if (count == Simd::kLanes) {
    Simd::store(to, v);
  } else {
    Simd::store_first(to, v, count);
  }
}

// y = activation(sums + bias) + residual, for `count` columns of one row.
template <typename Simd>
[[gnu::always_inline]] inline void finish_linear_row(const LinearParams& params,
                                                     const float* row_sums, std::int64_t row,
                                                     int column, int count) {
  const auto* bias = static_cast<const float*>(params.weights.bias);
  const auto* residual = static_cast<const float*>(params.residual);
  if (residual != nullptr) {
    residual += row % params.residual_rows * params.residual_stride + column;
  }
  float* y = static_cast<float*>(params.y) + row * params.y_stride + column;
  for_lanes<Simd>(
      count, [&](int at, int lanes) __attribute__((always_inline)) {
        auto value = load_count<Simd>(row_sums + at, lanes);
        if (bias != nullptr) value = Simd::add(value, load_count<Simd>(bias + column + at, lanes));
        if (params.activation == Activation::kGeluTanh) value = gelu_tanh<Simd>(value);
        if (residual != nullptr) value = Simd::add(value, load_count<Simd>(residual + at, lanes));
        store_count<Simd>(y + at, value, lanes);
      });
}

// kRows rows, at most kLinearPanelColumns columns.
template <typename Simd, int kRows>
void linear_tile(const LinearParams& params, std::int64_t row, int column, int num_columns) {
  alignas(64) float sums[kRows * kLinearPanelColumns];
  const auto* x = static_cast<const float*>(params.x) + row * params.x_stride;
  const auto* weight = static_cast<const float*>(params.weights.weight);
  const int k = params.weights.in;
  for (int at = 0; at < num_columns; at += kTileColumns) {
    // A last group of fewer columns repeats one: its sums are stored beside and not used.
    const float* w[kTileColumns];
    for (int j = 0; j < kTileColumns; ++j) {
      const int last = num_columns - 1;
      w[j] = weight + static_cast<std::int64_t>(column + (at + j < last ? at + j : last)) * k;
    }
    dot_tile<Simd, kRows>(x, params.x_stride, w, k, sums + at, kLinearPanelColumns);
  }
  for (int i = 0; i < kRows; ++i) {
    finish_linear_row<Simd>(params, sums + i * kLinearPanelColumns, row + i, column, num_columns);
  }
}

template <typename Simd>
void linear_block(const LinearParams& params, const LinearBlock& block) {
  for (int column = block.column_begin; column < block.column_end; column += kLinearPanelColumns) {
    const int left = block.column_end - column;
    const int num_columns = left < kLinearPanelColumns ? left : kLinearPanelColumns;
    for (std::int64_t row = block.row_begin; row < block.row_end; row += Simd::kTileRows) {
      with_count<Simd::kTileRows>(
          block.row_end - row < Simd::kTileRows ? static_cast<int>(block.row_end - row)
                                                : Simd::kTileRows,
          [&]<int kRows>() { linear_tile<Simd, kRows>(params, row, column, num_columns); });
    }
  }
}

template <typename Simd>
void norm_rows(const NormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  using Vector = typename Simd::Vector;
  const auto* gamma = static_cast<const float*>(params.weights.gamma);
  const auto* beta = static_cast<const float*>(params.weights.beta);
  const bool centres = params.weights.kind == NormKind::kLayer;
  const auto dim = static_cast<float>(params.dim);
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const float* x = static_cast<const float*>(params.x) + r * params.x_stride;
    float* y = static_cast<float*>(params.y) + r * params.y_stride;
    Vector mean = Simd::zero();
    if (centres) {
      Vector sum = Simd::zero();
      for_lanes<Simd>(
          params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
            sum = Simd::add(sum, load_count<Simd>(x + at, lanes));
          });
      mean = Simd::broadcast(Simd::sum(sum) / dim);
    }
    Vector squares = Simd::zero();
    for_lanes<Simd>(
        params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
          Vector centred = Simd::sub(load_count<Simd>(x + at, lanes), mean);
          // Lanes past the end hold -mean: they must not count.
          if (lanes < Simd::kLanes) {
            alignas(64) float values[Simd::kLanes];
            Simd::store(values, centred);
            centred = Simd::load_first(values, lanes);
          }
          squares = Simd::fma(centred, centred, squares);
        });
    const float variance = Simd::sum(squares) / dim;
    const Vector scale = Simd::broadcast(1.0f / __builtin_sqrtf(variance + params.weights.eps));
    for_lanes<Simd>(
        params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
          const Vector normal = Simd::mul(Simd::sub(load_count<Simd>(x + at, lanes), mean), scale);
          const Vector shift = beta == nullptr ? Simd::zero() : load_count<Simd>(beta + at, lanes);
          store_count<Simd>(y + at, Simd::fma(normal, load_count<Simd>(gamma + at, lanes), shift),
                            lanes);
        });
  }
}

template <typename Simd>
void gate_rows(const GateParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const bool is_silu = params.activation == Activation::kSilu;
  const bool is_gelu = params.activation == Activation::kGeluTanh;
  const bool is_gelu_erf = params.activation == Activation::kGeluErf;
  const auto offset = Simd::broadcast(params.up_offset);
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const float* x = static_cast<const float*>(params.x) + r * params.x_stride;
    float* y = static_cast<float*>(params.y) + r * params.y_stride;
    for_lanes<Simd>(
        params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
          auto value = load_count<Simd>(x + at, lanes);
          if (is_silu) value = silu<Simd>(value);
          if (is_gelu) value = gelu_tanh<Simd>(value);
          if (is_gelu_erf) value = gelu_erf<Simd>(value);
          const auto up = Simd::add(load_count<Simd>(x + params.dim + at, lanes), offset);
          store_count<Simd>(y + at, Simd::mul(value, up), lanes);
        });
  }
}

// Keys of one step of the running softmax. Fixed, and counted from key 0, so that a query meets the
// same steps in whatever tile, pack or launch it comes.
inline constexpr int kKeyBlock = 64;
static_assert(kKeyBlock % kPageTokens == 0);

// Running softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018) of
// kRows queries: per query the largest score so far, the sum of the exponentials, and the weighted
// sum of the values, all relative to that largest score.
template <typename Simd, int kRows>
class AttentionRun {
 public:
  explicit AttentionRun(const AttentionTile& tile) : tile_(tile) {
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(tile.head_dim));
    scale_ = scale;
    for (int i = 0; i < kRows; ++i) {
      largest_[i] = -__builtin_inff();
      sum_[i] = 0;
      for (int d = 0; d < tile.head_dim; d += Simd::kLanes) {
        Simd::store(values_[i] + d, Simd::zero());
      }
    }
  }

  void run() {
    int num_keys = 0;
    for (int i = 0; i < kRows; ++i) {
      if (tile_.num_visible[i] > num_keys) num_keys = tile_.num_visible[i];
    }
    for (int begin = 0; begin < num_keys; begin += kKeyBlock) {
      const int count = num_keys - begin < kKeyBlock ? num_keys - begin : kKeyBlock;
      find_rows(tile_.k, begin, count);
      score_keys(count);
      for (int i = 0; i < kRows; ++i) weigh_row(i, tile_.num_visible[i] - begin);
      find_rows(tile_.v, begin, count);
      add_values(count);
    }
    for (int i = 0; i < kRows; ++i) write_row(i);
  }

 private:
  using Vector = typename Simd::Vector;

  // The block's keys, or its values: where they lie, or float32 copies of them.
  void find_rows(const void* base, int begin, int count) {
    for (int j = 0; j < count; ++j) {
      const int key = begin + j;
      const std::int64_t page = key / kPageTokens;
      const std::int64_t number = tile_.page_table != nullptr ? tile_.page_table[page] : page;
      const std::int64_t at =
          tile_.first + number * tile_.page_stride + key % kPageTokens * tile_.key_stride;
      if (tile_.format == KvFormat::kNative) {
        rows_[j] = static_cast<const float*>(base) + at;
      } else {
        load_kv(tile_.format, base, at, copies_[j], tile_.head_dim);
        rows_[j] = copies_[j];
      }
    }
  }

  void score_keys(int count) {
    for (int j = 0; j < count; j += kTileColumns) {
      const float* keys[kTileColumns];
      for (int c = 0; c < kTileColumns; ++c) keys[c] = rows_[j + c < count ? j + c : count - 1];
      dot_tile<Simd, kRows>(tile_.q, tile_.q_stride, keys, tile_.head_dim, weights_[0] + j,
                            kKeyBlock);
    }
  }

  // Scores to weights of the keys that query i sees: the first num_visible of this block. For a
  // block that it does not see, weights of 0 leave everything as it was.
  void weigh_row(int i, int num_visible) {
    float* row = weights_[i];
    for (int j = num_visible > 0 ? num_visible : 0; j < kKeyBlock; ++j) row[j] = -__builtin_inff();
    if (num_visible <= 0) {
      for (int j = 0; j < kKeyBlock; ++j) row[j] = 0;
      return;
    }
    const Vector scale = Simd::broadcast(scale_);
    Vector most = Simd::load(row);
    for (int j = Simd::kLanes; j < kKeyBlock; j += Simd::kLanes) {
      most = Simd::max(most, Simd::load(row + j));
    }
    const float block_largest = Simd::largest(most) * scale_;
    const float largest = block_largest > largest_[i] ? block_largest : largest_[i];
    Vector sum = Simd::zero();
    for (int j = 0; j < kKeyBlock; j += Simd::kLanes) {
      const Vector score = Simd::mul(Simd::load(row + j), scale);
      const Vector weight = exp<Simd>(Simd::sub(score, Simd::broadcast(largest)));
      Simd::store(row + j, weight);
      sum = Simd::add(sum, weight);
    }
    if (largest != largest_[i]) {
      alignas(64) float shrink[Simd::kLanes];
      Simd::store(shrink, exp<Simd>(Simd::broadcast(largest_[i] - largest)));
      const Vector factor = Simd::broadcast(shrink[0]);
      for (int d = 0; d < tile_.head_dim; d += Simd::kLanes) {
        Simd::store(values_[i] + d, Simd::mul(Simd::load(values_[i] + d), factor));
      }
      sum_[i] *= shrink[0];
      largest_[i] = largest;
    }
    sum_[i] += Simd::sum(sum);
  }

  // values[i] += weights[i][j] v_j, key after key.
  void add_values(int count) {
    constexpr int kVectors = 4;
    int d = 0;
    for (; d + kVectors * Simd::kLanes <= tile_.head_dim; d += kVectors * Simd::kLanes) {
      add_value_columns<kVectors>(count, d, Simd::kLanes);
    }
    for (; d < tile_.head_dim; d += Simd::kLanes) {
      const int left = tile_.head_dim - d;
      add_value_columns<1>(count, d, left < Simd::kLanes ? left : Simd::kLanes);
    }
  }

  template <int kVectors>
  [[gnu::always_inline]] void add_value_columns(int count, int d, int lanes) {
    Vector sums[kRows][kVectors];
    for (int i = 0; i < kRows; ++i) {
      for (int c = 0; c < kVectors; ++c) sums[i][c] = Simd::load(values_[i] + d + c * Simd::kLanes);
    }
    for (int j = 0; j < count; ++j) {
      const float* v = rows_[j] + d;
      Vector weight[kRows];
      for (int i = 0; i < kRows; ++i) weight[i] = Simd::broadcast(weights_[i][j]);
      for (int c = 0; c < kVectors; ++c) {
        const Vector value = load_count<Simd>(v + c * Simd::kLanes, lanes);
        for (int i = 0; i < kRows; ++i) sums[i][c] = Simd::fma(weight[i], value, sums[i][c]);
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int c = 0; c < kVectors; ++c) {
        Simd::store(values_[i] + d + c * Simd::kLanes, sums[i][c]);
      }
    }
  }

  void write_row(int i) {
    const Vector sum = Simd::broadcast(sum_[i]);
    float* out = tile_.out + i * tile_.out_stride;
    for_lanes<Simd>(
        tile_.head_dim, [&](int at, int lanes) __attribute__((always_inline)) {
          store_count<Simd>(out + at, Simd::div(Simd::load(values_[i] + at), sum), lanes);
        });
  }

  const AttentionTile& tile_;
  float scale_ = 0;
  float largest_[kRows];
  float sum_[kRows];
  alignas(64) float weights_[kRows][kKeyBlock];
  alignas(64) float values_[kRows][kMaxHeadDim];
  const float* rows_[kKeyBlock];
  alignas(64) float copies_[kKeyBlock][kMaxHeadDim];  // untouched where the cache is float32
};

template <typename Simd>
void attend(const AttentionTile& tile) {
  with_count<Simd::kTileRows>(tile.num_queries,
                              [&]<int kRows>() { AttentionRun<Simd, kRows>(tile).run(); });
}

template <typename Simd, typename Function>
[[gnu::always_inline]] inline void map_in_place(float* values, std::int64_t count,
                                                Function function) {
  for_lanes<Simd>(
      static_cast<int>(count), [&](int at, int lanes) __attribute__((always_inline)) {
        store_count<Simd>(values + at, function(load_count<Simd>(values + at, lanes)), lanes);
      });
}

template <typename Simd>
constexpr VectorOps make_vector_ops() {
  static_assert(Simd::kTileRows <= kMaxTileRows);
  static_assert(kKeyBlock % Simd::kLanes == 0 && kMaxHeadDim % Simd::kLanes == 0);
  return {
      .name = Simd::kName,
      .tile_rows = Simd::kTileRows,
      .linear_block = linear_block<Simd>,
      .norm_rows = norm_rows<Simd>,
      .gate_rows = gate_rows<Simd>,
      .attend = attend<Simd>,
      .exp = [](float* values,
                std::int64_t count) { map_in_place<Simd>(values, count, exp<Simd>); },
      .gelu_tanh = [](float* values,
                      std::int64_t count) { map_in_place<Simd>(values, count, gelu_tanh<Simd>); },
      .gelu_erf = [](float* values,
                     std::int64_t count) { map_in_place<Simd>(values, count, gelu_erf<Simd>); }};
}

}  // namespace gapless::cpu
