#include "measure/step_statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace gapless {
namespace {

// Forward [end - 10, end - 2], sampling [end - 2, end].
StepRecord step(StepKind kind, std::int64_t end_ns, int num_rows, int num_zombies = 0) {
  StepRecord record;
  record.kind = kind;
  record.num_rows = num_rows;
  record.num_zombies = num_zombies;
  record.num_cached_tokens = 100 * num_rows;
  record.forward_begin_ns = end_ns - 10;
  record.forward_end_ns = end_ns - 2;
  record.sampling_begin_ns = end_ns - 2;
  record.sampling_end_ns = end_ns;
  return record;
}

TEST(StepStatistics, PeriodsAddUpToTheWindow) {
  const std::vector<StepRecord> records{
      step(StepKind::kDecode, 100, 2),    step(StepKind::kDecode, 112, 2),
      step(StepKind::kPrefill, 142, 1),   step(StepKind::kDecode, 162, 2),
      step(StepKind::kDecode, 173, 2, 1), step(StepKind::kDecode, 179, 2, 2)};
  const StepStatistics statistics = step_statistics(records, 2);
  EXPECT_EQ(statistics.elapsed_ns, 79);
  EXPECT_EQ(statistics.fill_ns, 30);
  EXPECT_EQ(statistics.decode_ns, 49);
  EXPECT_EQ(statistics.num_decode_steps, 4);
  EXPECT_EQ(statistics.num_zombies, 3);
  EXPECT_EQ(statistics.num_decode_tokens, 5);
  EXPECT_EQ(statistics.num_first_tokens, 1);
  EXPECT_DOUBLE_EQ(statistics.tokens_per_s(), 6 / 79e-9);
  EXPECT_EQ(statistics.steady_ns, 29);
  EXPECT_DOUBLE_EQ(statistics.decode_tokens_per_s(), 3 / 29e-9);
  EXPECT_DOUBLE_EQ(statistics.mean_answer_tokens(), 6);
}

TEST(StepStatistics, OnlyFullStepsBehindADecodeStepGiveAPeriod) {
  const std::vector<StepRecord> records{
      step(StepKind::kDecode, 100, 2),    step(StepKind::kDecode, 112, 2),
      step(StepKind::kPrefill, 142, 1),   step(StepKind::kDecode, 162, 2),
      step(StepKind::kDecode, 173, 1),    step(StepKind::kDecode, 184, 2, 1),
      step(StepKind::kDecode, 190, 2, 2), step(StepKind::kDecode, 203, 2)};
  const StepStatistics statistics = step_statistics(records, 2);
  EXPECT_EQ(statistics.period_ns, (std::vector<double>{12, 13}));
  EXPECT_EQ(statistics.dead_period_ns, (std::vector<double>{6}));
  EXPECT_EQ(statistics.after_fill_period_ns, (std::vector<double>{20}));
  EXPECT_EQ(statistics.forward_ns, (std::vector<double>{8, 8, 8}));
  EXPECT_EQ(statistics.sampling_ns, (std::vector<double>{2, 2, 2}));
  EXPECT_DOUBLE_EQ(statistics.mean_context(), 100);
}

TEST(StepStatistics, SpreadIsMedianAndOuterTenths) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Spread spread = spread_of(values);
  EXPECT_DOUBLE_EQ(spread.median, 50);
  EXPECT_DOUBLE_EQ(spread.p10, 10);
  EXPECT_DOUBLE_EQ(spread.p90, 90);
  EXPECT_EQ(spread.count, 101);
  EXPECT_EQ(spread_of({}).count, 0);
}

}  // namespace
}  // namespace gapless
