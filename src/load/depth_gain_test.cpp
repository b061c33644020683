#include "load/depth_gain.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

DepthPoint point(int depth, int repeat, int concurrency, double tokens_per_s) {
  DepthPoint point{depth, repeat, {}};
  point.summary.concurrency = concurrency;
  point.summary.max_tokens = 3;
  point.summary.tokens_per_s = tokens_per_s;
  point.summary.ttft_ms.p50 = 1000 / tokens_per_s;
  point.summary.host_us_per_step = 10 * depth + repeat;
  return point;
}

TEST(DepthGain, ComparesEachRepeatWithItsOwn) {
  // The machine became twice as fast in the second repeat, which says nothing about depths.
  const std::vector<DepthPoint> points = {
      point(1, 0, 8, 100), point(2, 0, 8, 110), point(2, 1, 8, 240), point(1, 1, 8, 200),
      point(1, 2, 8, 100), point(2, 2, 8, 105), point(2, 0, 4, 50),
  };
  const std::vector<DepthGain> gains = depth_gains(points);
  ASSERT_EQ(gains.size(), 1u) << "4 clients were not measured at depth 1";
  EXPECT_EQ(gains[0].concurrency, 8);
  EXPECT_EQ(gains[0].max_tokens, 3);
  EXPECT_NEAR(gains[0].tokens_per_s.median, 0.10, 1e-9);
  EXPECT_NEAR(gains[0].tokens_per_s.min, 0.05, 1e-9);
  EXPECT_NEAR(gains[0].tokens_per_s.max, 0.20, 1e-9);
  EXPECT_NEAR(gains[0].ttft.median, 1 / 1.1 - 1, 1e-9);
  EXPECT_DOUBLE_EQ(gains[0].host_us_at_1.median, 11);
  EXPECT_DOUBLE_EQ(gains[0].host_us.median, 21);
}

TEST(DepthGain, AnEvenNumberOfRepeatsHasItsMedianBetweenTwo) {
  EXPECT_DOUBLE_EQ(range_of({4, 1, 3, 2}).median, 2.5);
  EXPECT_DOUBLE_EQ(range_of({}).max, 0);
}

}  // namespace
}  // namespace gapless
