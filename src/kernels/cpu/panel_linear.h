// Products of bfloat16 for many rows, by tiles that want both sides packed.
//
// Columns of weights are packed for all rows of a block, and stay in the second-level cache: the weights lie in memory once, as the
// checkpoint has them. A few rows are packed for all of these columns, and stay in the first-level cache. So many numbers of k as both
// have room for are a chunk; where k has several, the sums lie in memory in between, which does not change them.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"

namespace gapless::cpu {

// Tiles: one block's packed columns and rows, as amx_linear.h and whole_number_linear.h have them, for the products that they take.
// A group is Tiles::kColumns columns, or at most Tiles::kRows rows.
template <typename Simd, typename Tiles>
class PanelLinear {
 public:
  static constexpr int kMaxColumns = 1024;
  static constexpr int kMaxSumColumns = 288, kMaxSumRows = 768;  // where k takes several chunks

  // At most kMaxColumns columns of it, or kMaxSumRows rows and kMaxSumColumns columns, are worked on at a time.
  static void run(const LinearParams& params, const LinearBlock& block) {
    const auto run_part = [&](const LinearBlock& part) { PanelLinear(params, part).run(); };
    const int k = params.weights.in;
    if (k <= Tiles::kMaxChunk) {
      const int most = Tiles::kMaxPacked / padded(k) / Tiles::kColumns * Tiles::kColumns;
      for_blocks(block, 1 << 30, most < kMaxColumns ? most : kMaxColumns, run_part);
    } else {
      for_blocks(block, kMaxSumRows, kMaxSumColumns, run_part);
    }
  }

 private:
  static constexpr int kColumns = Tiles::kColumns;
  static_assert(kMaxSumColumns * Tiles::kMaxChunk <= Tiles::kMaxPacked);
  static_assert(kMaxSumColumns % kColumns == 0 && kMaxColumns % kColumns == 0);
  static_assert(Tiles::kMaxChunk % Tiles::kStep == 0);

  // k in whole steps of the tiles.
  static constexpr int padded(int k) {
    return (k + Tiles::kStep - 1) / Tiles::kStep * Tiles::kStep;
  }
  static constexpr int smaller(int a, int b) { return a < b ? a : b; }

  PanelLinear(const LinearParams& params, const LinearBlock& block)
      : p_(params),
        row_(block.row_begin),
        num_rows_(static_cast<int>(block.row_end - block.row_begin)),
        column_(block.column_begin),
        num_columns_(block.column_end - block.column_begin) {}

  void run() {
    const int k = p_.weights.in;
    const int num_chunks = (k + Tiles::kMaxChunk - 1) / Tiles::kMaxChunk;
    const int chunk = padded((k + num_chunks - 1) / num_chunks);
    for (int begin = 0; begin < k; begin += chunk) {
      const int count = smaller(chunk, k - begin);
      pack_columns(begin, count);
      for (int row = 0; row < num_rows_; row += Tiles::kRows) {
        const int rows = smaller(Tiles::kRows, num_rows_ - row);
        tiles_.pack_rows(x_at(row, begin), p_.x_stride, rows, count);
        for (int column = 0; column < num_columns_; column += kColumns) {
          multiply(row, rows, column, begin, count, chunk);
        }
      }
    }
  }

  const Bf16* x_at(int row, int k) const {
    return static_cast<const Bf16*>(p_.x) + (row_ + row) * p_.x_stride + k;
  }

  void pack_columns(int begin, int count) {
    const Bf16* weight =
        static_cast<const Bf16*>(p_.weights.weight) + std::int64_t{column_} * p_.weights.in + begin;
    for (int column = 0; column < num_columns_; column += kColumns) {
      const Bf16* columns[kColumns];
      find_columns(weight, p_.weights.in, num_columns_, column, columns);
      if (count == p_.weights.in && column + kColumns < num_columns_) {
        const auto* next =
            reinterpret_cast<const char*>(weight + std::int64_t{column + kColumns} * count);
        const std::int64_t bytes =
            smaller(kColumns, num_columns_ - column - kColumns) * std::int64_t{2} * count;
        for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
      }
      tiles_.pack_columns(columns, column / kColumns, count);
    }
  }

  void multiply(int row, int rows, int column, int begin, int count, int chunk) {
    alignas(64) float of_one_chunk[Tiles::kRows * kColumns];
    const bool is_only_chunk = chunk >= p_.weights.in;
    float* const sums = is_only_chunk ? of_one_chunk : sums_ + row * kMaxSumColumns + column;
    const std::int64_t stride = is_only_chunk ? kColumns : kMaxSumColumns;
    tiles_.multiply(rows, column / kColumns, count, begin == 0, sums, stride);
    if (begin + count < p_.weights.in) return;
    finish_linear_rows<Simd, Bf16>(p_, sums, stride, row_ + row, rows, column_ + column,
                                   smaller(kColumns, num_columns_ - column));
  }

  const LinearParams& p_;
  const std::int64_t row_;
  const int num_rows_, column_, num_columns_;
  Tiles tiles_;
  // A last group writes all its rows.
  alignas(64) float sums_[(kMaxSumRows + Tiles::kRows) * kMaxSumColumns];
};

}  // namespace gapless::cpu
