#include "measure/overlap_model.h"

#include <gtest/gtest.h>

#include <array>

namespace gapless {
namespace {

struct ArticleRow {
  int num_streams;
  double blocking_ms;
  double pipelined_ms;
  double mean_tokens;
  double predicted;  // its column, a share
};

// The tables of "Popping the GPU Bubble".
constexpr std::array kRtx3090{ArticleRow{1, 5.44, 5.10, 104, 0.057},
                              ArticleRow{8, 7.52, 6.97, 113, 0.076},
                              ArticleRow{32, 11.74, 10.52, 113, 0.111}};
constexpr std::array kB200{ArticleRow{1, 3.11, 2.63, 115, 0.172},
                           ArticleRow{8, 4.04, 3.30, 115, 0.222},
                           ArticleRow{32, 5.55, 3.98, 104, 0.391}};

void expect_article(std::span<const ArticleRow> rows) {
  std::array<PeriodPoint, 3> periods;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    periods[i] = {rows[i].num_streams, rows[i].pipelined_ms};
  }
  for (const ArticleRow& row : rows) {
    const double tax = zombie_tax(2, row.mean_tokens, growing_share(periods, row.num_streams));
    EXPECT_NEAR(predicted_gain(row.blocking_ms, row.pipelined_ms, tax), row.predicted, 0.0015)
        << row.num_streams << " streams";
  }
}

TEST(OverlapModel, GivesTheArticlesPredictedColumn) {
  expect_article(kRtx3090);
  expect_article(kB200);
}

TEST(OverlapModel, GrowingShareIsTheSlopeTowardsFewerStreams) {
  constexpr std::array points{PeriodPoint{1, 10}, PeriodPoint{4, 13}, PeriodPoint{8, 21}};
  EXPECT_DOUBLE_EQ(growing_share(points, 1), 1);
  EXPECT_DOUBLE_EQ(growing_share(points, 1, 0.25), 0.25);  // dead steps exit early
  EXPECT_DOUBLE_EQ(growing_share(points, 4), 4.0 * 1 / 13);
  EXPECT_DOUBLE_EQ(growing_share(points, 8), 8.0 * 2 / 21);
}

TEST(OverlapModel, EveryStepInFlightBeyondOneIsTaxed) {
  EXPECT_DOUBLE_EQ(zombie_tax(1, 100, 1), 0);
  EXPECT_DOUBLE_EQ(zombie_tax(2, 100, 1), 0.01);
  EXPECT_DOUBLE_EQ(zombie_tax(4, 100, 0.5), 0.015);
}

}  // namespace
}  // namespace gapless
