#include "kernels/cpu/linear_tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace gapless::cpu {
namespace {

// Of the sets with packed products.
constexpr std::int64_t kMaxRows = 1536, kMaxColumns = 1024;

LinearTasks cut(std::int64_t rows, std::int64_t columns, int threads, int row_unit = 32) {
  return LinearTasks({.num_rows = rows,
                      .num_columns = columns,
                      .row_unit = row_unit,
                      .max_rows = kMaxRows,
                      .max_columns = kMaxColumns,
                      .num_threads = threads});
}

// How long threads of these speeds take for all tasks, beside how long they would if none of them waited. Each takes the next task when it
// has none.
double time_of(const LinearTasks& tasks, std::int64_t all, const std::vector<double>& speeds) {
  std::vector<double> free_at(speeds.size(), 0.0);
  double speed = 0;
  for (const double one : speeds) speed += one;
  for (std::int64_t i = 0; i < tasks.count(); ++i) {
    const auto next = std::min_element(free_at.begin(), free_at.end());
    const LinearPart part = tasks.part(i);
    *next += static_cast<double>(part.rows * part.columns) /
             speeds[static_cast<std::size_t>(next - free_at.begin())];
  }
  return *std::max_element(free_at.begin(), free_at.end()) * speed / static_cast<double>(all);
}

TEST(LinearTasksTest, EveryThreadHasWorkInADecodeStep) {
  for (const int rows : {1, 8, 32}) {
    for (const int columns : {2048, 6144, 8192, 51200}) {
      for (const int threads : {2, 4, 16, 21}) {
        EXPECT_GE(cut(rows, columns, threads).count(), 2 * threads)
            << rows << " x " << columns << ", " << threads << " threads";
      }
    }
  }
}

TEST(LinearTasksTest, PartsAreTheWholeProductOnce) {
  for (const std::int64_t rows : {1, 31, 95, 96, 100, 730, 4000}) {
    for (const std::int64_t columns : {1, 33, 256, 1152, 4304}) {
      for (const int threads : {1, 2, 16, 128}) {
        const LinearTasks tasks = cut(rows, columns, threads);
        std::vector<std::uint8_t> seen(static_cast<std::size_t>(rows * columns), 0);
        for (std::int64_t i = 0; i < tasks.count(); ++i) {
          const LinearPart part = tasks.part(i);
          for (std::int64_t row = part.row; row < part.row + part.rows; ++row) {
            for (std::int64_t column = part.column; column < part.column + part.columns; ++column) {
              ++seen.at(static_cast<std::size_t>(row * columns + column));
            }
          }
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), rows * columns)
            << rows << " x " << columns << ", " << threads << " threads";
      }
    }
  }
}

// Whether all threads are alike, or half of them share a core with something else.
TEST(LinearTasksTest, ThreadsWaitLittleInACropAndAPrefill) {
  for (const int threads : {2, 8, 16}) {
    for (const int row_unit : {12, 32}) {
      for (const int columns : {1152, 2048, 3456, 4304, 6144, 8192}) {
        for (const int rows : {729, 770}) {
          const LinearTasks tasks = cut(rows, columns, threads, row_unit);
          std::vector<double> speeds(static_cast<std::size_t>(threads), 1.0);
          const std::int64_t all = std::int64_t{rows} * columns;
          EXPECT_LT(time_of(tasks, all, speeds), 1.2)
              << rows << " x " << columns << ", " << threads << " threads";
          std::fill(speeds.begin(), speeds.begin() + threads / 2, 0.4);
          EXPECT_LT(time_of(tasks, all, speeds), 1.25)
              << rows << " x " << columns << ", " << threads << " threads that are not alike";
        }
      }
    }
  }
}

TEST(LinearTasksTest, TasksAreWholeUnitsAndNoLargerThanAllowed) {
  for (const std::int64_t rows : {1, 48, 95, 96, 730, 4000}) {
    for (const std::int64_t columns : {1, 31, 32, 256, 1152, 51200}) {
      for (const int threads : {1, 2, 16, 128}) {
        const LinearTasks tasks = cut(rows, columns, threads);
        for (std::int64_t i = 0; i < tasks.count(); ++i) {
          const LinearPart part = tasks.part(i);
          if (part.rows == 0 || part.columns == 0) continue;
          EXPECT_EQ(part.row % 32, 0);
          EXPECT_EQ(part.column % kColumnUnit, 0);
          EXPECT_LE(part.rows, kMaxRows);
          EXPECT_LE(part.columns, kMaxColumns);
        }
      }
    }
  }
}

// A task's weights are packed for its rows alone, and its rows for its columns.
TEST(LinearTasksTest, FewerThreadsTakeLargerTasks) {
  EXPECT_GE(cut(770, 1024, 1).task().rows, 770);
  EXPECT_EQ(cut(770, 1024, 1).task().columns, 1024);
  EXPECT_EQ(cut(770, 1024, 1).count(), 1);
  for (const int columns : {1152, 8192}) {
    const LinearTask two = cut(770, columns, 2).task(), sixteen = cut(770, columns, 16).task();
    EXPECT_GE(two.rows * two.columns, 2 * sixteen.rows * sixteen.columns) << columns;
  }
}

}  // namespace
}  // namespace gapless::cpu
