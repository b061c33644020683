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

// The cut of the least time. A task's time is that of its products, and that of reading and packing its rows and columns, which come
// from memory or from another core's cache: each as long as multiplying it with kPacking of the other side. Threads
// may be alike: then tasks take whole turns. Or two may share a core: then all work until the last task begins, and wait for it. The
// second counts kUnlike times as much. One turn for all would be the best of the first, and leaves half of the threads waiting for the
// other half in the second.
inline LinearTask many_rows_task(const LinearCut& cut) {
  constexpr std::int64_t kPacking = 128, kUnlike = 3, kMostRowBlocks = 8;
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
      const std::int64_t all = cut.num_rows * cut.num_columns +
                               kPacking * (across * cut.num_rows + down * cut.num_columns);
      const std::int64_t last = height * width + kPacking * (height + width);
      const std::int64_t turns = divide_up(down * across, cut.num_threads);
      const std::int64_t time =
          turns * cut.num_threads * last + kUnlike * (all + (cut.num_threads - 1) * last);
      if (time < least) least = time, best = {rows, columns};
    }
  }
  return best;
}

inline LinearTask linear_task(const LinearCut& cut) {
  return cut.num_rows < kFewRows ? few_rows_task(cut) : many_rows_task(cut);
}

}  // namespace gapless::cpu
