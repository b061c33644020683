#include "kernels/cpu/linear_tasks.h"

#include <gtest/gtest.h>

namespace gapless::cpu {
namespace {

// Of the sets with packed products.
constexpr std::int64_t kMaxRows = 1536, kMaxColumns = 1024;

LinearTask cut(std::int64_t rows, std::int64_t columns, int threads) {
  return linear_task(rows, columns, kMaxRows, kMaxColumns, threads);
}
std::int64_t num_tasks(std::int64_t rows, std::int64_t columns, int threads) {
  const LinearTask task = cut(rows, columns, threads);
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

TEST(LinearTasksTest, EveryThreadHasWorkInACropAndAPrefill) {
  for (const int columns : {1152, 2048, 3456, 4304, 6144}) {
    EXPECT_GE(num_tasks(730, columns, 16), 20) << columns;
    EXPECT_GE(num_tasks(770, columns, 16), 20) << columns;
  }
}

TEST(LinearTasksTest, TasksAreWholeUnitsAndNoLargerThanAllowed) {
  for (const std::int64_t rows : {1, 48, 95, 96, 730, 4000}) {
    for (const std::int64_t columns : {1, 31, 32, 256, 1152, 51200}) {
      for (const int threads : {1, 2, 16, 128}) {
        const LinearTask task = cut(rows, columns, threads);
        EXPECT_EQ(task.rows % kRowUnit, 0);
        EXPECT_EQ(task.columns % kColumnUnit, 0);
        EXPECT_LE(task.rows, kMaxRows);
        EXPECT_LE(task.columns, kMaxColumns);
        EXPECT_GT(task.rows, 0);
        EXPECT_GT(task.columns, 0);
      }
    }
  }
}

// Where cutting rows gives enough, columns stay together: their rows would be packed more often for nothing.
TEST(LinearTasksTest, TwoThreadsNeedNoSmallerPanels) {
  EXPECT_EQ(cut(730, 1152, 2).rows, 288);
  EXPECT_EQ(cut(730, 1152, 2).columns, 576);
  EXPECT_EQ(cut(4000, 51200, 2).rows, 1344);
  EXPECT_EQ(cut(4000, 51200, 2).columns, 1024);
}

}  // namespace
}  // namespace gapless::cpu
