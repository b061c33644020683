// Matrix products: packed for many rows of bfloat16, dot products for few and for float32.
//
// Packed: a block of weights becomes float32 with its columns in the lanes (pack_columns), in a
// buffer of the second-level cache, and serves all rows of the block. So the weights lie in memory
// once, as the checkpoint has them, and what is widened or transposed is paid once for many rows.
#pragma once

#include <cstdint>

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/for_lanes.h"
#include "kernels/cpu/multiply_tile.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_ops.h"

namespace gapless::cpu {

// y = activation(sums + bias) + residual. Y: T, or float for logits.
template <typename Simd, typename T, typename Y, bool kIsGelu, bool kHasResidual>
void finish_linear_rows_as(const LinearParams& params, const float* sums, std::int64_t sums_stride,
                           std::int64_t row, int num_rows, int column, int num_columns) {
  const auto* bias = static_cast<const T*>(params.weights.bias);
  const auto* residual = static_cast<const T*>(params.residual);
  const std::int64_t first_residual_row = kHasResidual ? row % params.residual_rows : 0;
  for_lanes<Simd>(
      num_columns, [&](int at, int lanes) __attribute__((always_inline)) {
        const auto bias_lanes =
            bias == nullptr ? Simd::zero() : load_count<Simd>(bias + column + at, lanes);
        Y* y = static_cast<Y*>(params.y) + row * params.y_stride + column + at;
        std::int64_t residual_row = first_residual_row;
        for (int i = 0; i < num_rows; ++i) {
          auto value = load_count<Simd>(sums + i * sums_stride + at, lanes);
          value = Simd::add(value, bias_lanes);
          if constexpr (kIsGelu) value = gelu_tanh<Simd>(value);
          if constexpr (kHasResidual) {
            const T* from = residual + residual_row * params.residual_stride + column + at;
            value = Simd::add(value, load_count<Simd>(from, lanes));
            if (++residual_row == params.residual_rows) residual_row = 0;
          }
          store_count<Simd>(y, value, lanes);
          y += params.y_stride;
        }
      });
}

// Rows [row, row + num_rows), whose sums are `sums_stride` apart.
template <typename Simd, typename T>
[[gnu::always_inline]] inline void finish_linear_rows(const LinearParams& params, const float* sums,
                                                      std::int64_t sums_stride, std::int64_t row,
                                                      int num_rows, int column, int num_columns) {
  const auto finish = [&]<typename Y, bool kIsGelu, bool kHasResidual>() {
    finish_linear_rows_as<Simd, T, Y, kIsGelu, kHasResidual>(params, sums, sums_stride, row,
                                                             num_rows, column, num_columns);
  };
  const auto finish_as = [&]<typename Y>() {
    const bool is_gelu = params.activation == Activation::kGeluTanh;
    if (params.residual != nullptr) {
      is_gelu ? finish.template operator()<Y, true, true>()
              : finish.template operator()<Y, false, true>();
    } else {
      is_gelu ? finish.template operator()<Y, true, false>()
              : finish.template operator()<Y, false, false>();
    }
  };
  if (params.y_dtype == kDTypeOf<T>) {
    finish_as.template operator()<T>();
  } else {
    finish_as.template operator()<float>();
  }
}

// Rows of x, `stride` apart, that a product needs next: it may fetch so many into the second-level cache meanwhile.
struct NextRows {
  const Bf16* rows;
  std::int64_t stride;
  int count;
};

// Columns `first` and up of a block's num_columns, the first of which is at `weight`, `stride` apart. A last
// group of fewer repeats the last one: its sums are stored beside and not used.
template <typename T, int kCount>
[[gnu::always_inline]] inline void find_columns(const T* weight, std::int64_t stride,
                                                int num_columns, int first,
                                                const T* (&columns)[kCount]) {
  const int last = num_columns - 1;
  for (int j = 0; j < kCount; ++j) {
    columns[j] = weight + (first + j < last ? first + j : last) * stride;
  }
}

// kRows rows, at most kLinearPanelColumns columns.
template <typename Simd, typename T, int kRows>
void linear_tile(const LinearParams& params, std::int64_t row, int column, int num_columns) {
  alignas(64) float sums[kRows * kLinearPanelColumns];
  const auto* x = static_cast<const T*>(params.x) + row * params.x_stride;
  const int k = params.weights.in;
  const T* weight = static_cast<const T*>(params.weights.weight) + std::int64_t{column} * k;
  for (int at = 0; at < num_columns; at += kTileColumns) {
    const T* w[kTileColumns];
    find_columns(weight, k, num_columns, at, w);
    dot_tile<Simd, kRows>(x, params.x_stride, w, k, sums + at, kLinearPanelColumns);
  }
  finish_linear_rows<Simd, T>(params, sums, kLinearPanelColumns, row, kRows, column, num_columns);
}

// At most kLinearPanelColumns columns.
template <typename Simd, typename T>
void linear_by_dots(const LinearParams& params, const LinearBlock& block) {
  const int num_columns = block.column_end - block.column_begin;
  for (std::int64_t row = block.row_begin; row < block.row_end; row += Simd::kTileRows) {
    const std::int64_t left = block.row_end - row;
    with_count<Simd::kTileRows>(
        left < Simd::kTileRows ? static_cast<int>(left) : Simd::kTileRows, [&]<int kRows>() {
          linear_tile<Simd, T, kRows>(params, row, block.column_begin, num_columns);
        });
  }
}

// Of bfloat16. At most kLinearPanelColumns columns and kLinearPanelRows rows.
template <typename Simd>
class PackedLinear {
 public:
  PackedLinear(const LinearParams& params, const LinearBlock& block)
      : p_(params),
        row_(block.row_begin),
        num_rows_(static_cast<int>(block.row_end - block.row_begin)),
        column_(block.column_begin),
        num_columns_(block.column_end - block.column_begin) {}

  void run() {
    __builtin_memset(sums_, 0, static_cast<std::size_t>(num_rows_) * sizeof(sums_[0]));
    for (int k = 0; k < p_.weights.in; k += kStep) {
      const int count = p_.weights.in - k < kStep ? p_.weights.in - k : kStep;
      load_rows(k, count);
      for (int at = 0; at < num_columns_; at += kGroup) {
        load_columns(at, k, count);
        for (int i = 0; i < num_rows_; i += Simd::kPackedRows) {
          const int left = num_rows_ - i;
          with_count<Simd::kPackedRows>(
              left < Simd::kPackedRows ? left : Simd::kPackedRows, [&]<int kRows>() {
                multiply_tile<Simd, kRows, 2, kXStride>(x_[i], w_, kGroup, count, sums_[i] + at,
                                                        kLinearPanelColumns);
              });
        }
      }
    }
    finish_linear_rows<Simd, Bf16>(p_, sums_[0], kLinearPanelColumns, row_, num_rows_, column_,
                                   num_columns_);
  }

 private:
  static constexpr int kStep = 256;  // of k: a group of columns fits the first-level cache
  static constexpr int kGroup = 2 * Simd::kLanes;  // columns
  static constexpr int kXStride = kStep + 16;      // rows do not meet in the same cache sets
  static_assert(kStep % kGroup == 0 && kLinearPanelColumns % kGroup == 0);

  void load_rows(int k, int count) {
    for (int i = 0; i < num_rows_; ++i) {
      const Bf16* x = static_cast<const Bf16*>(p_.x) + (row_ + i) * p_.x_stride + k;
      for_lanes<Simd>(
          count, [&](int at, int lanes) __attribute__((always_inline)) {
            Simd::store(x_[i] + at, load_count<Simd>(x + at, lanes));
          });
    }
  }

  void load_columns(int first, int k, int count) {
    const Bf16* weight =
        static_cast<const Bf16*>(p_.weights.weight) + std::int64_t{column_} * p_.weights.in + k;
    for (int half = 0; half < 2; ++half) {
      const Bf16* columns[Simd::kLanes];
      find_columns(weight, p_.weights.in, num_columns_, first + half * Simd::kLanes, columns);
      pack_columns<Simd>(columns, count, w_ + half * Simd::kLanes, kGroup);
    }
  }

  const LinearParams& p_;
  const std::int64_t row_;
  const int num_rows_, column_, num_columns_;
  alignas(64) float w_[kStep * kGroup];
  alignas(64) float x_[kLinearPanelRows][kXStride];
  alignas(64) float sums_[kLinearPanelRows][kLinearPanelColumns];
};

// run(part) for the parts of a block that have at most so many rows and columns.
template <typename Run>
[[gnu::always_inline]] inline void for_blocks(const LinearBlock& block, int max_rows,
                                              int max_columns, const Run& run) {
  for (int column = block.column_begin; column < block.column_end; column += max_columns) {
    const int columns_left = block.column_end - column;
    for (std::int64_t row = block.row_begin; row < block.row_end; row += max_rows) {
      const std::int64_t rows_left = block.row_end - row;
      run(LinearBlock{
          .row_begin = row,
          .row_end = row + (rows_left < max_rows ? rows_left : max_rows),
          .column_begin = column,
          .column_end = column + (columns_left < max_columns ? columns_left : max_columns)});
    }
  }
}

template <typename Simd, typename T>
void linear_block(const LinearParams& params, const LinearBlock& block) {
  for_blocks(block, kLinearPanelRows, kLinearPanelColumns, [&](const LinearBlock& part) {
    // In float32 a decode step gives the bits that a prefill gives: one form for both.
    if constexpr (kDTypeOf<T> == DType::kF32) {
      linear_by_dots<Simd, T>(params, part);
    } else if (params.decode) {
      linear_by_dots<Simd, T>(params, part);
    } else {
      PackedLinear<Simd>(params, part).run();
    }
  });
}

}  // namespace gapless::cpu
