#include "sim/simulate_overlap.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gapless {
namespace {

TEST(SimulateOverlapTest, TheFormulaGivesTheArticlesPredictedColumn) {
  for (const OverlapCase& overlap_case : article_cases()) {
    EXPECT_NEAR(predicted_gain(overlap_case), overlap_case.article_predicted, 0.1)
        << overlap_case.gpu << ", " << overlap_case.streams << " streams";
  }
}

// With real scheduling, random answer lengths and zombies.
TEST(SimulateOverlapTest, TheSimulationGivesTheArticlesPredictedColumn) {
  std::printf("gpu       streams  T_block  T_pipe  zombies  simulated  formula  article\n");
  for (const OverlapCase& overlap_case : article_cases()) {
    const auto result = simulate_overlap(overlap_case);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    std::printf("%-9s %7d  %7.3f  %6.3f  %6.2f%%  %8.2f%%  %6.2f%%  %6.1f%%\n",
                overlap_case.gpu.c_str(), overlap_case.streams, result->blocking.period_ms,
                result->pipelined.period_ms, result->pipelined.zombie_share * 100,
                result->gain_percent, predicted_gain(overlap_case), overlap_case.article_predicted);
    EXPECT_NEAR(result->gain_percent, overlap_case.article_predicted, 1.0)
        << overlap_case.gpu << ", " << overlap_case.streams << " streams";
    EXPECT_NEAR(result->blocking.period_ms, overlap_case.block_ms, 0.01 * overlap_case.block_ms);
    EXPECT_NEAR(result->pipelined.period_ms, overlap_case.period_ms, 0.01 * overlap_case.period_ms);
    EXPECT_EQ(result->blocking.zombie_share, 0);
    EXPECT_GT(result->pipelined.zombie_share, 0);
  }
}

// Once the host's work is longer than the device's, pipelining hides the device instead.
TEST(SimulateOverlapTest, ABubbleLargerThanTheForwardIsHiddenOnlyInPart) {
  OverlapCase slow_host = article_cases()[3];
  slow_host.block_ms = 3 * slow_host.period_ms;
  const auto result = simulate_overlap(slow_host);
  ASSERT_TRUE(result.ok());
  EXPECT_NEAR(result->pipelined.period_ms, 2 * slow_host.period_ms, 0.02 * slow_host.period_ms);
}

}  // namespace
}  // namespace gapless
