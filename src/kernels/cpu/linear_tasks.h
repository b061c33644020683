// How a product is cut among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"

namespace gapless::cpu {

// Columns of a task are a multiple of this, as the kernels' tiles are.
inline constexpr std::int64_t kColumnUnit = 32;
// Fewer of a task would not pay for packing its weights.
inline constexpr std::int64_t kFewRows = 96;

// A product, and what its tasks may be.
struct LinearCut {
  std::int64_t num_rows, num_columns;
  std::int64_t row_unit;               // rows of a task are a multiple of it
  std::int64_t max_rows, max_columns;  // VectorOps::linear_rows and linear_columns
  std::int64_t num_threads;
};

// Of a task; the last ones of a product may have fewer.
struct LinearTask {
  std::int64_t rows, columns;
};

// Few rows are packed for one task only, so their columns are cut as small as they may be: a decode step's product of one row would
// otherwise be one or two tasks.
inline LinearTask few_rows_task(const LinearCut& cut) {
  const std::int64_t least_panels = divide_up(cut.num_columns, cut.max_columns);
  const std::int64_t most_panels = std::max(least_panels, cut.num_columns / kColumnUnit);
  const std::int64_t panels = std::clamp(3 * cut.num_threads, least_panels, most_panels);
  const std::int64_t units = std::max<std::int64_t>(cut.num_columns / panels / kColumnUnit, 1);
  return {divide_up(cut.num_rows, cut.row_unit) * cut.row_unit, units * kColumnUnit};
}

// Rows [row, row + rows) and columns [column, column + columns) of a product; none of them where a task has no such part.
struct LinearPart {
  std::int64_t row, rows, column, columns;
};

// The tasks of a product. Threads are not alike: some share a core with another program. So the last tasks, one for each thread, are cut
// into quarters: a thread that has none left waits for a quarter, and most of the work is in tasks that pack little.
class LinearTasks {
 public:
  explicit LinearTasks(const LinearCut& cut) : cut_(cut), task_(best_task(cut)) {
    num_whole_ = num_tasks(cut, task_) - num_quartered(cut, task_);
  }

  std::int64_t count() const { return num_whole_ + 4 * num_quartered(cut_, task_); }

  LinearPart part(std::int64_t i) const {
    if (i < num_whole_) return whole(i);
    LinearPart part = whole(num_whole_ + (i - num_whole_) / 4);
    take_half(i & 1, cut_.row_unit, part.row, part.rows);
    take_half(i & 2, kColumnUnit, part.column, part.columns);
    return part;
  }

  LinearTask task() const { return task_; }

 private:
  static std::int64_t num_tasks(const LinearCut& cut, const LinearTask& task) {
    return divide_up(cut.num_rows, task.rows) * divide_up(cut.num_columns, task.columns);
  }
  static std::int64_t num_quartered(const LinearCut& cut, const LinearTask& task) {
    if (cut.num_rows < kFewRows || cut.num_threads == 1) return 0;  // few, or nobody who waits
    return std::min(cut.num_threads, num_tasks(cut, task));
  }

  static LinearTask best_task(const LinearCut& cut) {
    return cut.num_rows < kFewRows ? few_rows_task(cut) : many_rows_task(cut);
  }

  // Of the least time. A task's time is that of its products, and that of reading and packing its rows, which come from another core's
  // cache, and its columns, which come from memory and are transposed: as long as multiplying each with so many of the other side. All
  // threads work until the last quarter begins, and wait for it.
  static LinearTask many_rows_task(const LinearCut& cut) {
    constexpr std::int64_t kPackingRow = 24, kPackingColumn = 32, kMostRowBlocks = 8;
    const std::int64_t least_blocks = divide_up(cut.num_rows, cut.max_rows);
    LinearTask best{cut.row_unit, kColumnUnit};
    std::int64_t least = INT64_MAX;
    for (std::int64_t blocks = least_blocks; blocks < least_blocks + kMostRowBlocks; ++blocks) {
      const std::int64_t rows =
          divide_up(divide_up(cut.num_rows, blocks), cut.row_unit) * cut.row_unit;
      if (rows > cut.max_rows) continue;
      const std::int64_t down = divide_up(cut.num_rows, rows);
      const std::int64_t height = std::min(rows, cut.num_rows);
      for (std::int64_t columns = kColumnUnit; columns <= cut.max_columns; columns += kColumnUnit) {
        const std::int64_t across = divide_up(cut.num_columns, columns);
        const std::int64_t width = std::min(columns, cut.num_columns);
        const std::int64_t edges = kPackingRow * height + kPackingColumn * width;
        const std::int64_t quartered = num_quartered(cut, {rows, columns});
        const std::int64_t packing = kPackingRow * across * cut.num_rows +
                                     kPackingColumn * down * cut.num_columns + quartered * edges;
        const std::int64_t last = height * width / 4 + edges / 2;
        const std::int64_t time =
            cut.num_rows * cut.num_columns + packing + (cut.num_threads - 1) * last;
        if (time < least) least = time, best = {rows, columns};
      }
    }
    return best;
  }

  LinearPart whole(std::int64_t i) const {
    const std::int64_t panels = divide_up(cut_.num_columns, task_.columns);
    const std::int64_t row = i / panels * task_.rows, column = i % panels * task_.columns;
    return {row, std::min(task_.rows, cut_.num_rows - row), column,
            std::min(task_.columns, cut_.num_columns - column)};
  }

  static void take_half(bool second, std::int64_t unit, std::int64_t& first, std::int64_t& count) {
    const std::int64_t half = std::min(divide_up(divide_up(count, 2), unit) * unit, count);
    if (second) first += half;
    count = second ? count - half : half;
  }

  LinearCut cut_;
  LinearTask task_;
  std::int64_t num_whole_;
};

}  // namespace gapless::cpu
