#include "kernels/cpu/linear_tasks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gapless::cpu {
namespace {

// Of the sets with packed products.
constexpr std::int64_t kMaxRows = 1536, kMaxColumns = 1024;

LinearTask cut(std::int64_t rows, std::int64_t columns, int threads, int row_unit = 32) {
  return linear_task({.num_rows = rows,
                      .num_columns = columns,
                      .row_unit = row_unit,
                      .max_rows = kMaxRows,
                      .max_columns = kMaxColumns,
                      .num_threads = threads});
}
std::int64_t num_tasks(std::int64_t rows, std::int64_t columns, int threads, int row_unit = 32) {
  const LinearTask task = cut(rows, columns, threads, row_unit);
  return divide_up(rows, task.rows) * divide_up(columns, task.columns);
}

TEST(LinearTasksTest, EveryThreadHasWorkInADecodeStep) {
  for (const int rows : {1, 8, 32}) {
    for (const int columns : {2048, 6144, 8192, 51200}) {
      for (const int threads : {2, 4, 16, 21}) {
        EXPECT_GE(num_tasks(rows, columns, threads), 2 * threads)
            << rows << " x " << columns << ", " << threads << " threads";
      }
    }
  }
}

// All threads together multiply little more than the product, were all tasks as large as the largest and all threads alike.
TEST(LinearTasksTest, ThreadsHaveEvenWorkInACropAndAPrefill) {
  for (const int threads : {2, 8, 16}) {
    for (const int row_unit : {12, 32}) {
      for (const int columns : {1152, 2048, 3456, 4304, 6144, 8192}) {
        for (const int rows : {729, 770}) {
          const LinearTask task = cut(rows, columns, threads, row_unit);
          const std::int64_t turns =
              divide_up(num_tasks(rows, columns, threads, row_unit), threads);
          const std::int64_t height = std::min<std::int64_t>(task.rows, rows);
          const std::int64_t width = std::min<std::int64_t>(task.columns, columns);
          EXPECT_LT(static_cast<double>(turns * threads * height * width), 1.25 * rows * columns)
              << rows << " x " << columns << ", " << threads << " threads: tasks of " << task.rows
              << " x " << task.columns;
        }
      }
    }
  }
}

TEST(LinearTasksTest, TasksAreWholeUnitsAndNoLargerThanAllowed) {
  for (const std::int64_t rows : {1, 48, 95, 96, 730, 4000}) {
    for (const std::int64_t columns : {1, 31, 32, 256, 1152, 51200}) {
      for (const int threads : {1, 2, 16, 128}) {
        const LinearTask task = cut(rows, columns, threads);
        EXPECT_EQ(task.rows % 32, 0);
        EXPECT_EQ(task.columns % kColumnUnit, 0);
        EXPECT_LE(task.rows, kMaxRows);
        EXPECT_LE(task.columns, kMaxColumns);
        EXPECT_GT(task.rows, 0);
        EXPECT_GT(task.columns, 0);
      }
    }
  }
}

// A task's weights are packed for its rows alone, and its rows for its columns.
TEST(LinearTasksTest, FewerThreadsTakeLargerTasks) {
  EXPECT_GE(cut(770, 1024, 1).rows, 770);
  EXPECT_EQ(cut(770, 1024, 1).columns, 1024);
  for (const int columns : {1152, 8192}) {
    const LinearTask two = cut(770, columns, 2), sixteen = cut(770, columns, 16);
    EXPECT_GE(two.rows * two.columns, 2 * sixteen.rows * sixteen.columns) << columns;
  }
}

// Some threads may be half as fast as others: with one task for each, these would wait as long as they work.
TEST(LinearTasksTest, ThreadsHaveMoreThanOneTaskWhereTasksStayLarge) {
  for (const int columns : {1152, 2048, 3456, 4304, 6144, 8192}) {
    EXPECT_GE(num_tasks(770, columns, 16), 24) << columns;
  }
}

}  // namespace
}  // namespace gapless::cpu
