#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"

namespace gapless::cpu {
namespace {

// As kMinParallelProducts, of elements.
constexpr std::int64_t kMinParallelElements = 20'000;
// Rows of one task: enough to reuse a panel of weights, few enough to share the work evenly.
constexpr std::int64_t kRowsPerTask = 96;

}  // namespace

void linear(const VectorOps& ops, const LinearParams& params) {
  const std::int64_t num_rows = params.num_rows;
  const int num_columns = params.weights.out;
  if (num_rows * num_columns * params.weights.in < kMinParallelProducts) {
    ops.linear_block(params, {0, num_rows, 0, num_columns});
    return;
  }
  const std::int64_t rows_per_task = kRowsPerTask / ops.tile_rows * ops.tile_rows;
  const std::int64_t num_panels = divide_up(num_columns, kLinearPanelColumns);
  const std::int64_t num_tasks = num_panels * divide_up(num_rows, rows_per_task);
  ThreadPool::shared().parallel_for(num_tasks, [&](std::int64_t task) {
    const std::int64_t row = task / num_panels * rows_per_task;
    const auto column = static_cast<int>(task % num_panels) * kLinearPanelColumns;
    ops.linear_block(params, {.row_begin = row,
                              .row_end = std::min(row + rows_per_task, num_rows),
                              .column_begin = column,
                              .column_end = std::min(column + kLinearPanelColumns, num_columns)});
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
