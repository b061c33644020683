#include "pipeline/run_ahead.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

// An H200 with Moondream 2: 8 rows, 1.04 ms, 16 us of host work.
RunAhead after(int num_steps, int num_rows, double tokens_per_answer,
               std::int64_t host_ns = 16'000) {
  RunAhead run_ahead;
  double ended = 0;
  for (int i = 0; i < num_steps; ++i) {
    const auto before = static_cast<int>(ended);
    ended += num_rows / tokens_per_answer;
    run_ahead.committed({.num_rows = num_rows,
                         .num_ended = static_cast<int>(ended) - before,
                         .step_ns = 1'040'000,
                         .host_ns = host_ns});
  }
  return run_ahead;
}

TEST(RunAheadTest, PaysUntilSomethingIsKnown) {
  EXPECT_TRUE(RunAhead().pays(1));
  EXPECT_TRUE(RunAhead().pays(64));
}

TEST(RunAheadTest, PaysForLongAnswersAndNotForShortOnes) {
  EXPECT_TRUE(after(2000, 8, 110).pays(8));
  EXPECT_FALSE(after(2000, 8, 3).pays(8));
  EXPECT_FALSE(after(2000, 64, 3).pays(64));
}

// Its zombie is alone in its step, and a step that nobody lives in costs nothing.
TEST(RunAheadTest, AlwaysPaysForALoneRow) {
  EXPECT_TRUE(after(2000, 1, 2).pays(1));
  EXPECT_FALSE(after(2000, 2, 2).pays(2));
}

TEST(RunAheadTest, PaysForShortAnswersWhereTheHostIsSlow) {
  EXPECT_FALSE(after(2000, 8, 3, 100'000).pays(8));
  EXPECT_TRUE(after(2000, 8, 3, 500'000).pays(8));
}

// The share is that of the last 2048 rows or so, whatever the batch.
TEST(RunAheadTest, FollowsWhatTheAnswersAreNow) {
  for (const int num_rows : {1, 8, 64}) {
    RunAhead run_ahead = after(20'000 / num_rows, num_rows, 4);
    EXPECT_NEAR(run_ahead.ending_share(), 0.25, 0.05);
    for (int i = 0; i < 10'000 / num_rows; ++i) {
      run_ahead.committed(
          {.num_rows = num_rows, .num_ended = 0, .step_ns = 1'040'000, .host_ns = 16'000});
    }
    EXPECT_LT(run_ahead.ending_share(), 0.01);
    EXPECT_TRUE(run_ahead.pays(num_rows));
  }
}

// Answers of one length that began together.
TEST(RunAheadTest, ABatchThatEndsAllAtOnceDoesNotLookLikeShortAnswers) {
  RunAhead run_ahead;
  for (int i = 0; i < 1000; ++i) {
    run_ahead.committed({.num_rows = 64,
                         .num_ended = i % 110 == 109 ? 64 : 0,
                         .step_ns = 4'050'000,
                         .host_ns = 50'000});
    ASSERT_TRUE(run_ahead.pays(64)) << i;
  }
}

TEST(RunAheadTest, AStepOfZombiesSaysNothing) {
  RunAhead run_ahead = after(2000, 8, 3);
  const double before = run_ahead.ending_share();
  run_ahead.committed({.num_rows = 0, .num_ended = 0, .step_ns = 10, .host_ns = 1'000'000'000});
  EXPECT_EQ(run_ahead.ending_share(), before);
  EXPECT_FALSE(run_ahead.pays(8));
}

}  // namespace
}  // namespace gapless
