#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"

namespace gapless::cpu {
namespace {

// As kMinParallelProducts, of elements.
constexpr std::int64_t kMinParallelElements = 20'000;

// Columns and rows of a task are multiples of these, as the kernels' tiles are.
constexpr std::int64_t kUnit = 32;
constexpr std::int64_t kTileUnit = 12;
constexpr std::int64_t kFewRows = 96;  // fewer of a task would not pay for packing its weights

// Few enough rows that all threads have work until the end.
std::int64_t rows_of_task(const VectorOps& ops, std::int64_t num_rows, std::int64_t num_panels) {
  const std::int64_t wanted = 3 * ThreadPool::shared().num_threads();
  std::int64_t blocks = divide_up(num_rows, ops.linear_rows);
  while (blocks * num_panels < wanted && num_rows / (blocks + 1) >= kFewRows) ++blocks;
  return divide_up(divide_up(num_rows, blocks), kTileUnit) * kTileUnit;
}

}  // namespace

void linear(const VectorOps& ops, const LinearParams& params) {
  const std::int64_t num_rows = params.num_rows;
  const int num_columns = params.weights.out;
  if (num_rows * num_columns * params.weights.in < kMinParallelProducts) {
    ops.linear_block(params, {0, num_rows, 0, num_columns});
    return;
  }
  const std::int64_t num_panels = divide_up(num_columns, ops.linear_columns);
  const auto columns_per_task =
      static_cast<int>(divide_up(divide_up(num_columns, num_panels), kUnit) * kUnit);
  const std::int64_t rows_per_task = rows_of_task(ops, num_rows, num_panels);
  const std::int64_t num_tasks = num_panels * divide_up(num_rows, rows_per_task);
  ThreadPool::shared().parallel_for(num_tasks, [&](std::int64_t task) {
    const std::int64_t row = task / num_panels * rows_per_task;
    const auto column = static_cast<int>(task % num_panels) * columns_per_task;
    if (column >= num_columns) return;
    ops.linear_block(params, {.row_begin = row,
                              .row_end = std::min(row + rows_per_task, num_rows),
                              .column_begin = column,
                              .column_end = std::min(column + columns_per_task, num_columns)});
  });
}

namespace {

// rows(begin, end) over all rows, on several threads where that pays.
template <typename Rows>
void over_rows(std::int64_t num_rows, int dim, const Rows& rows) {
  if (num_rows * dim < kMinParallelElements) {
    rows(0, num_rows);
    return;
  }
  constexpr std::int64_t kRows = 32;
  ThreadPool::shared().parallel_for(divide_up(num_rows, kRows), [&](std::int64_t task) {
    rows(task * kRows, std::min((task + 1) * kRows, num_rows));
  });
}

}  // namespace

void norm(const VectorOps& ops, const NormParams& params) {
  over_rows(params.num_rows, params.dim,
            [&](std::int64_t begin, std::int64_t end) { ops.norm_rows(params, begin, end); });
}

void gate(const VectorOps& ops, const GateParams& params) {
  over_rows(params.num_rows, params.dim,
            [&](std::int64_t begin, std::int64_t end) { ops.gate_rows(params, begin, end); });
}

}  // namespace gapless::cpu
