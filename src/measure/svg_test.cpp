#include "measure/svg.h"

#include <gtest/gtest.h>

#include <vector>

#include "measure/gain_plot.h"
#include "measure/timeline_svg.h"

namespace gapless {
namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Svg, EscapesText) {
  Svg svg(10, 10);
  svg.text(0, 0, "a < b & c");
  EXPECT_EQ(count(svg.str(), "a &lt; b &amp; c"), 1);
}

std::vector<StepRecord> decode_steps(int count) {
  std::vector<StepRecord> records;
  for (int i = 0; i < count; ++i) {
    StepRecord record;
    record.number = i;
    record.num_rows = 2;
    const std::int64_t begin_ns = 1000 * i;
    record.plan_begin_ns = begin_ns;
    record.forward_begin_ns = begin_ns + 100;
    record.forward_end_ns = record.sampling_begin_ns = begin_ns + 800;
    record.sampling_end_ns = begin_ns + 900;
    record.commit_end_ns = begin_ns + 1000;
    records.push_back(record);
  }
  return records;
}

TEST(TimelineSvg, PicksConsecutiveFullStepsFromTheMiddle) {
  std::vector<StepRecord> records = decode_steps(20);
  records[11].num_zombies = 1;
  const std::vector<HostPhase> phases{{HostPhaseKind::kLaunch, 3, 3000, 3100},
                                      {HostPhaseKind::kLaunch, 13, 13000, 13100}};
  const TimelineSample sample = pick_decode_steps("t", records, phases, 2, 6);
  ASSERT_EQ(sample.records.size(), 6u);
  EXPECT_EQ(sample.records.front().number, 12);
  ASSERT_EQ(sample.phases.size(), 1u);
  EXPECT_EQ(sample.phases[0].step, 13);
}

TEST(TimelineSvg, DrawsEveryStepAndPhase) {
  const std::vector<StepRecord> records = decode_steps(12);
  const std::vector<HostPhase> phases{{HostPhaseKind::kCommit, 7, 7100, 7300}};
  const std::vector<TimelineSample> samples{pick_decode_steps("one", records, phases, 2, 3)};
  const std::string text = timeline_svg(samples).str();
  EXPECT_EQ(count(text, "forward of step"), 3);
  EXPECT_EQ(count(text, "sampling of step"), 3);
  EXPECT_EQ(count(text, "commit of step 7"), 1);
}

TEST(GainPlot, HasAPointForEveryGainAndALineForASweep) {
  std::vector<OverlapGain> gains(3);
  for (std::size_t i = 0; i < gains.size(); ++i) {
    gains[i].workload = "plain";
    gains[i].mean_tokens = 100;
    gains[i].host_delay_us = 100.0 * static_cast<double>(i);
    const double gain = 0.1 * static_cast<double>(i);
    gains[i].predicted = gains[i].observed = {gain, gain - 0.01, gain + 0.01};
  }
  const std::string text = gain_plot(gains, "title").str();
  // One on the left, one on the right.
  EXPECT_EQ(count(text, "predicted +"), 6);
  EXPECT_EQ(count(text, "stroke-width=\"1.5\""), 2);
  gains.push_back({.workload = "short", .mean_tokens = 3});
  EXPECT_EQ(gain_plot(gains, "title").str(), text);
  EXPECT_EQ(count(gain_plot({}, "none").str(), "<circle"), 0);
}

}  // namespace
}  // namespace gapless
