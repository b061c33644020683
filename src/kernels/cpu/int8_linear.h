// Matrix products in 8-bit whole numbers (kernels/int8_layout.h). Sums are exact, so there is one way for many rows and
// for few, and every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"
#include "kernels/int8_layout.h"

namespace gapless::cpu {

// Bytes from four numbers of a row to its next four.
inline constexpr int kInt8RowStep = Int8Rows::kTile * kInt8Step;

// Where the bytes of row `at` of these rows begin.
template <typename Simd>
[[gnu::always_inline]] inline std::uint8_t* find_row(const Int8Rows& rows, std::int64_t at) {
  return rows.bytes + at / Int8Rows::kTile * rows.num_steps * kInt8RowStep +
         at % Int8Rows::kTile * kInt8Step;
}

// Row `row` of params.x as bytes, padded with 128, and its scale; not a number if one of its numbers is not finite.
template <typename Simd, typename T>
[[gnu::always_inline]] inline void round_row_to_int8(const LinearParams& params, std::int64_t row,
                                                     const Int8Rows& rows) {
  using Vector = typename Simd::Vector;
  const T* x = static_cast<const T*>(params.x) + row * params.x_stride;
  const int count = params.weights.in;
  Vector most = Simd::zero(), none = Simd::zero();
  for_lanes<Simd>(
      count, [&](int at, int lanes) __attribute__((always_inline)) {
        const Vector v = load_count<Simd>(x + at, lanes);
        most = Simd::max(most, Simd::max(v, Simd::sub(Simd::zero(), v)));
        none = Simd::fma(v, Simd::zero(), none);
      });
  const float largest = Simd::largest(most);
  const float kSmallest = 0x1p-100f;  // smaller numbers become 0: the factor would overflow
  const Vector factor = Simd::broadcast(largest > kSmallest ? 127 / largest : 0);
  // 1.5 * 2^23 + 128: the sum's lowest byte is the nearest whole number plus 128.
  const Vector shift = Simd::broadcast(12583040.0f);
  std::uint8_t* to = find_row<Simd>(rows, row - rows.first_row);
  for_lanes<Simd>(
      count, [&](int at, int lanes) __attribute__((always_inline)) {
        const Vector v = Simd::mul(load_count<Simd>(x + at, lanes), factor);
        alignas(64) std::uint32_t bits[Simd::kLanes];
        Simd::store(reinterpret_cast<float*>(bits), Simd::add(v, shift));
        std::uint8_t bytes[Simd::kLanes];
        for (int i = 0; i < Simd::kLanes; ++i) bytes[i] = static_cast<std::uint8_t>(bits[i]);
        for (int i = 0; i < lanes; i += kInt8Step) {
          __builtin_memcpy(to, bytes + i, kInt8Step);
          to += kInt8RowStep;
        }
      });
  rows.scales[row - rows.first_row] = largest * (1.0f / 127) + Simd::sum(none);
}

template <typename Simd, typename T>
void round_rows_to_int8(const LinearParams& params, std::int64_t row_begin, std::int64_t row_end,
                        const Int8Rows& rows) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    round_row_to_int8<Simd, T>(params, row, rows);
  }
}

// Sums of `num_steps` times four products, for rows that begin at x + 4 i and the 32 columns of a panel.
template <typename Simd>
struct PlainInt8Products {
  static constexpr int kTileRows = 4;

  template <int kRows>
  [[gnu::always_inline]] static void multiply(const std::uint8_t* x, const std::int8_t* panel,
                                              int num_steps,
                                              std::int32_t (&sums)[kRows][kInt8Columns]) {
    __builtin_memset(sums, 0, sizeof(sums));
    for (int step = 0; step < num_steps; ++step) {
      const std::int8_t* w = panel + step * kInt8Columns * kInt8Step;
      for (int i = 0; i < kRows; ++i) {
        const std::uint8_t* numbers = x + step * kInt8RowStep + i * kInt8Step;
        for (int j = 0; j < kInt8Columns; ++j) {
          for (int k = 0; k < kInt8Step; ++k) sums[i][j] += numbers[k] * w[j * kInt8Step + k];
        }
      }
    }
  }
};

// kRows rows and the columns [column, column + count) of a panel.
template <typename Simd, typename T, typename Products, int kRows>
void int8_tile(const LinearParams& params, const Int8Rows& rows, const Int8Layout& layout,
               std::int64_t row, int column, int count) {
  const std::int64_t first = row - rows.first_row;
  const void* packed = params.weights.int8;
  alignas(64) std::int32_t sums[kRows][kInt8Columns];
  Products::template multiply<kRows>(find_row<Simd>(rows, first), layout.panel(packed, column),
                                     rows.num_steps, sums);
  alignas(64) float values[kRows][kInt8Columns];
  const std::int32_t* offsets = layout.sums(packed) + column;
  const float* scales = layout.scales(packed) + column;
  for (int i = 0; i < kRows; ++i) {
    const float scale = rows.scales[first + i];
    for (int j = 0; j < kInt8Columns; ++j) {
      values[i][j] = static_cast<float>(sums[i][j] - 128 * offsets[j]) * scale * scales[j];
    }
  }
  finish_linear_rows<Simd, T>(params, values[0], kInt8Columns, row, kRows, column, count);
}

// Columns begin where a panel does.
template <typename Simd, typename T, typename Products>
void int8_block(const LinearParams& params, const Int8Rows& rows, const LinearBlock& block) {
  const Int8Layout layout{params.weights.in, params.weights.out};
  constexpr int kTileRows = Products::kTileRows;
  for (int column = block.column_begin; column < block.column_end; column += kInt8Columns) {
    const int left_columns = block.column_end - column;
    const int count = left_columns < kInt8Columns ? left_columns : kInt8Columns;
    for (std::int64_t row = block.row_begin; row < block.row_end; row += kTileRows) {
      const std::int64_t left = block.row_end - row;
      with_count<kTileRows>(
          left < kTileRows ? static_cast<int>(left) : kTileRows, [&]<int kRows>() {
            int8_tile<Simd, T, Products, kRows>(params, rows, layout, row, column, count);
          });
    }
  }
}

}  // namespace gapless::cpu
