// How a product is cut among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"

namespace gapless::cpu {

// Columns and rows of a task are multiples of these, as the kernels' tiles are.
inline constexpr std::int64_t kColumnUnit = 32;
inline constexpr std::int64_t kRowUnit = 48;
// Fewer of a task would not pay for packing its weights or its rows.
inline constexpr std::int64_t kFewRows = 96;
inline constexpr std::int64_t kFewColumns = 256;

// Of a task; the last ones of a product may have fewer.
struct LinearTask {
  std::int64_t rows, columns;
};

// At most max_rows and max_columns (VectorOps::linear_rows and linear_columns), and few enough that all threads have work until the
// end. Rows are cut first. Few rows are not packed for more than one task, so their columns are cut as small as they may be: a decode
// step's product of one row would otherwise be one or two tasks.
inline LinearTask linear_task(std::int64_t num_rows, std::int64_t num_columns,
                              std::int64_t max_rows, std::int64_t max_columns, int num_threads) {
  const std::int64_t wanted = std::int64_t{3} * num_threads;
  const std::int64_t least_panels = divide_up(num_columns, max_columns);
  std::int64_t blocks = divide_up(num_rows, max_rows);
  while (blocks * least_panels < wanted && num_rows / (blocks + 1) >= kFewRows) ++blocks;
  LinearTask task;
  task.rows = divide_up(divide_up(num_rows, blocks), kRowUnit) * kRowUnit;
  blocks = divide_up(num_rows, task.rows);
  const bool is_few = num_rows < kFewRows;
  const std::int64_t most_panels =
      std::max(least_panels, num_columns / (is_few ? kColumnUnit : kFewColumns));
  const std::int64_t panels = std::clamp(divide_up(wanted, blocks), least_panels, most_panels);
  const std::int64_t units = is_few ? std::max<std::int64_t>(num_columns / panels / kColumnUnit, 1)
                                    : divide_up(divide_up(num_columns, panels), kColumnUnit);
  task.columns = units * kColumnUnit;
  return task;
}

}  // namespace gapless::cpu
