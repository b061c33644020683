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

// With real scheduling, random answer lengths and zombies. The parts are the article's; its results
// are not used, and are missed by what it does not account for: the period that it measured is up
// to 0.04 ms longer than forward and sampling.
TEST(SimulateOverlapTest, ThePartsAloneComeNearTheArticlesResults) {
  std::printf("gpu       streams  blocking  pipelined  zombies  gain, off predicted, observed\n");
  for (const OverlapCase& overlap_case : article_cases()) {
    SCOPED_TRACE(overlap_case.gpu + ", " + std::to_string(overlap_case.streams) + " streams");
    const auto result = simulate_overlap(overlap_case);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    const OverlapMiss miss = miss_of(overlap_case, *result);
    std::printf("%-9s %7d  %8.3f  %9.3f  %6.2f%%  %6.2f%% %+.2f %+.2f\n", overlap_case.gpu.c_str(),
                overlap_case.streams, result->blocking.period_ms, result->pipelined.period_ms,
                result->pipelined.zombie_share * 100, result->gain_percent, miss.predicted_points,
                miss.observed_points);
    EXPECT_NEAR(miss.blocking_ms, 0, 0.001 * overlap_case.block_ms);
    // Everything of the host's work is hidden, and nothing is left over.
    const double device_ms = overlap_case.forward_ms + overlap_case.sampling_ms;
    EXPECT_NEAR(result->pipelined.period_ms, device_ms, 0.001 * device_ms);
    EXPECT_LT(miss.pipelined_ms, 0);
    EXPECT_LT(std::abs(miss.predicted_points), 2.0);
    EXPECT_EQ(result->blocking.zombie_share, 0);
    EXPECT_GT(result->pipelined.zombie_share, 0);
  }
}

TEST(SimulateOverlapTest, MissesAreSimulatedLessArticle) {
  OverlapCase given = article_cases()[0];
  OverlapResult result;
  result.blocking.period_ms = given.block_ms + 0.5;
  result.pipelined.period_ms = given.period_ms - 0.25;
  result.gain_percent = 10;
  const OverlapMiss miss = miss_of(given, result);
  EXPECT_DOUBLE_EQ(miss.blocking_ms, 0.5);
  EXPECT_NEAR(miss.pipelined_ms, -0.25, 1e-12);
  EXPECT_NEAR(miss.predicted_points, 10 - 5.7, 1e-12);
  EXPECT_NEAR(miss.observed_points, 10 - 6.5, 1e-12);
}

// Once the host's work is longer than the device's, pipelining hides the device instead.
TEST(SimulateOverlapTest, ABubbleLargerThanTheForwardIsHiddenOnlyInPart) {
  OverlapCase slow_host = article_cases()[3];
  const double device_ms = slow_host.forward_ms + slow_host.sampling_ms;
  slow_host.block_ms = 3 * device_ms;
  const auto result = simulate_overlap(slow_host);
  ASSERT_TRUE(result.ok());
  EXPECT_NEAR(result->pipelined.period_ms, 2 * device_ms, 0.02 * device_ms);
}

}  // namespace
}  // namespace gapless
