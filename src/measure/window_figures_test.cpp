#include "measure/window_figures.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

// A step whose device work and host work take so long.
StepRecord worked_step(StepKind kind, std::int64_t forward_ns, std::int64_t sampling_ns,
                       std::int64_t host_ns) {
  StepRecord record;
  record.kind = kind;
  record.forward_begin_ns = 1'000;
  record.forward_end_ns = 1'000 + forward_ns;
  // The gap before a sampling that waited for its masks is not work.
  record.sampling_begin_ns = record.forward_end_ns + 50;
  record.sampling_end_ns = record.sampling_begin_ns + sampling_ns;
  record.launch_end_ns = host_ns / 2;
  record.wait_end_ns = 1'000'000;
  record.commit_end_ns = 1'000'000 + host_ns - host_ns / 2;
  return record;
}

ClosedLoopWindow blocking_window() {
  ClosedLoopWindow window;
  window.records = {worked_step(StepKind::kPrefill, 900, 100, 300),
                    worked_step(StepKind::kDecode, 400, 100, 200),
                    worked_step(StepKind::kDecode, 400, 100, 800)};
  window.host_ns = 3'300;  // 1300 + 700 + 1300, one after the other
  window.num_tokens = 30;
  window.num_answers = 2;
  return window;
}

TEST(WindowFigures, SumsDeviceWorkAndTheHostsExcess) {
  const WindowFigures figures = window_figures(blocking_window());
  EXPECT_EQ(figures.device_ns, 2'000);
  EXPECT_EQ(figures.host_excess_ns, 300) << "of the last step alone";
  EXPECT_EQ(figures.idle_ns(), 1'300);
  EXPECT_EQ(figures.mean_decode_device_ns(), 500);
  EXPECT_DOUBLE_EQ(figures.tokens_per_s(), 30 / 3.3e-6);
}

TEST(WindowFigures, PredictsFromDepthOneAlone) {
  const WindowFigures blocking = window_figures(blocking_window());
  // Every step hides the shorter of its two parts.
  EXPECT_EQ(predict_pipelined(blocking, {.dead_row_share = 0}).wall_ns(), 1'000 + 500 + 800);
  // 2 answers, 2 dead rows each, a quarter of what a row of 8 adds to a step.
  const PredictedWindow predicted = predict_pipelined(
      blocking, {.depth = 3, .num_streams = 8, .growing_share = 0.4, .dead_row_share = 0.25});
  EXPECT_DOUBLE_EQ(predicted.zombie_ns, 2 * 2 * 0.25 * 0.4 * 500 / 8);
}

TEST(WindowFigures, AMissIsTheSumOfItsTwoCauses) {
  const WindowFigures blocking = window_figures(blocking_window());
  WindowFigures pipelined = blocking;
  pipelined.num_tokens = 60;    // twice as long
  pipelined.device_ns = 4'200;  // 200 more than twice as much
  pipelined.wall_ns = 5'000;    // idle for 800 instead of 600
  const GainComparison comparison = compare_windows(blocking, pipelined, {.dead_row_share = 0});
  EXPECT_DOUBLE_EQ(comparison.predicted, 3'300.0 / 2'300 - 1);
  EXPECT_DOUBLE_EQ(comparison.observed, 6'600.0 / 5'000 - 1);
  EXPECT_NEAR(comparison.miss, comparison.by_device + comparison.by_idle, 1e-12);
  EXPECT_NEAR(comparison.by_device, comparison.by_idle, 1e-12) << "200 ns each";
  EXPECT_LT(comparison.by_idle, 0);
}

}  // namespace
}  // namespace gapless
