#include "measure/measured_run.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

MeasuredRun run_of(const char* workload, int streams, int depth, std::vector<double> periods_ms) {
  MeasuredRun run{.workload = workload, .num_streams = streams, .depth = depth};
  run.periods_ms = std::move(periods_ms);
  return run;
}

TEST(MeasuredRunTest, ConstrainedPeriodsAreComparedWithPlainOnesOfTheSameRepeat) {
  const std::vector<MeasuredRun> runs = {
      run_of("plain", 1, 2, {1, 2, 4}),       run_of("plain", 8, 2, {10, 0, 10}),
      run_of("json", 1, 2, {1.01, 2.2, 4.2}), run_of("json", 8, 2, {12, 10, 11}),
      run_of("json", 1, 3, {1, 1, 1}),
  };
  const std::vector<PeriodAgainstPlain> against = periods_against_plain(runs);
  ASSERT_EQ(against.size(), 2u);  // depth 3 has nothing plain beside it
  EXPECT_EQ(against[0].num_streams, 1);
  EXPECT_NEAR(against[0].longer.median, 0.05, 1e-12);
  EXPECT_NEAR(against[0].longer.min, 0.01, 1e-12);
  EXPECT_NEAR(against[0].longer.max, 0.1, 1e-12);
  // A repeat without a full decode step says nothing.
  EXPECT_EQ(against[1].num_streams, 8);
  EXPECT_NEAR(against[1].longer.min, 0.1, 1e-12);
  EXPECT_NEAR(against[1].longer.max, 0.2, 1e-12);
}

}  // namespace
}  // namespace gapless
