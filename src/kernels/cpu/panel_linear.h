// Products of bfloat16 for many rows, by tiles that want both sides packed.
//
// Columns of weights are packed for all rows of a block, and stay in the second-level cache: the weights lie in memory once, as the
// checkpoint has them. A group of rows is packed for all of these columns. Where k is so long that both do not fit, so many steps of it
// as do are a chunk; the sums lie in memory in between, which does not change them.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"

namespace gapless::cpu {

// Tiles: amx_linear.h, whole_number_linear.h. They have
//   kRows, kColumns: of a group, the last of which may have fewer;
//   kStep: numbers of k in a RowStep and a ColumnStep, a group's packed rows and columns; kMaxSteps: at most so many at a time;
//   takes(params): whether they compute this product;
//   pack_rows, pack_columns: whole steps, 0 behind the last number;
//   multiply(): sums [kRows, kColumns] of a chunk of steps. An element's bits depend on its row and column alone, not on chunks.
template <typename Simd, typename Tiles>
class PanelLinear {
 public:
  static constexpr int kMaxColumns = 1024;

  // Parts of a block are worked on at a time.
  static void run(const LinearParams& params, const LinearBlock& block) {
    const auto run_part = [&](const LinearBlock& part) { PanelLinear(params, part).run(); };
    const int num_steps = steps_of(params.weights.in);
    if (num_steps <= Tiles::kMaxSteps) {
      const int groups = divide_up(block.column_end - block.column_begin, kColumns);
      const int parts = divide_up(groups, kMaxPackedSteps / num_steps);
      for_blocks(block, 1 << 30, divide_up(groups, parts) * kColumns, run_part);
    } else {
      for_blocks(block, kMaxSumRows, kMaxSumColumns, run_part);
    }
  }

 private:
  static constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  using RowStep = typename Tiles::RowStep;
  using ColumnStep = typename Tiles::ColumnStep;
  static constexpr int kMaxPackedSteps =
      static_cast<int>((std::size_t{1} << 20) / sizeof(ColumnStep));
  static constexpr int kMaxSumColumns = 288, kMaxSumRows = 768;  // where k takes several chunks
  static constexpr int kSumGroups = kMaxSumColumns / kColumns;   // across
  static_assert(kSumGroups <= kMaxPackedSteps && Tiles::kMaxSteps <= kMaxPackedSteps);
  static_assert(kMaxSumColumns % kColumns == 0 && kMaxSumRows % kRows == 0);

  static constexpr int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }
  static constexpr int steps_of(int in) { return divide_up(in, Tiles::kStep); }

  PanelLinear(const LinearParams& params, const LinearBlock& block)
      : p_(params),
        row_(block.row_begin),
        num_rows_(static_cast<int>(block.row_end - block.row_begin)),
        column_(block.column_begin),
        num_columns_(block.column_end - block.column_begin) {}

  void run() {
    const int all = steps_of(p_.weights.in);
    const int column_groups = divide_up(num_columns_, kColumns);
    const int row_groups = divide_up(num_rows_, kRows);
    const int num_chunks =
        divide_up(all, smaller(Tiles::kMaxSteps, kMaxPackedSteps / column_groups));
    const int chunk = divide_up(all, num_chunks);
    // Threads that work on other columns of the same rows begin with other ones: rows come from the cache of the core that made them.
    const int first = column_ / kColumns * 3 % row_groups;
    for (int step = 0; step < all; step += chunk) {
      const int num_steps = smaller(chunk, all - step);
      const int begin = step * Tiles::kStep;
      const int count = smaller(num_steps * Tiles::kStep, p_.weights.in - begin);
      pack_columns(begin, count, num_steps);
      for (int i = 0; i < row_groups; ++i) {
        const int row = (first + i) % row_groups * kRows;
        const int next = (first + i + 1) % row_groups * kRows;
        const int rows = smaller(kRows, num_rows_ - row);
        Tiles::pack_rows(x_at(row, begin), p_.x_stride, rows, count, rows_);
        const int next_rows = i + 1 < row_groups ? smaller(kRows, num_rows_ - next) : 0;
        const int share = divide_up(kRows, column_groups);
        for (int column = 0; column < num_columns_; column += kColumns) {
          const int from = column / kColumns * share;
          const NextRows prefetched{x_at(next + from, begin), p_.x_stride,
                                    from < next_rows ? smaller(share, next_rows - from) : 0};
          multiply(row, rows, column, step, num_steps, all, prefetched);
        }
      }
    }
  }

  const Bf16* x_at(int row, int k) const {
    return static_cast<const Bf16*>(p_.x) + (row_ + row) * p_.x_stride + k;
  }

  void pack_columns(int begin, int count, int num_steps) {
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
      Tiles::pack_columns(columns, count, columns_ + column / kColumns * num_steps);
    }
  }

  void multiply(int row, int rows, int column, int step, int num_steps, int all,
                const NextRows& next) {
    float* const sums = sums_[num_steps == all ? 0 : row / kRows * kSumGroups + column / kColumns];
    tiles_.multiply(rows_, columns_ + column / kColumns * num_steps, rows, num_steps, step == 0,
                    next, sums);
    if (step + num_steps < all) return;
    finish_linear_rows<Simd, Bf16>(p_, sums, kColumns, row_ + row, rows, column_ + column,
                                   smaller(kColumns, num_columns_ - column));
  }

  const LinearParams& p_;
  const std::int64_t row_;
  const int num_rows_, column_, num_columns_;
  const Tiles tiles_{};
  RowStep rows_[Tiles::kMaxSteps];
  ColumnStep columns_[kMaxPackedSteps];
  // [groups of rows][groups of columns]
  alignas(64) float sums_[kMaxSumRows / kRows * kSumGroups][kRows * kColumns];
};

}  // namespace gapless::cpu
