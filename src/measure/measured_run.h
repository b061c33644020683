// One measured point of `gapless bench overlap`, and what two of them say about the gain of
// pipelining.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "measure/closed_loop.h"
#include "measure/step_statistics.h"
#include "measure/window_figures.h"

namespace gapless {

// What a run's accounts come to, per step of any kind.
struct StepAccounts {
  std::int64_t num_steps = 0;
  std::int64_t busy_ns = 0;
  std::int64_t starved_ns = 0;
  std::int64_t bubble_ns = 0;
  std::array<std::int64_t, kNumHostPhaseKinds> bubble_by_phase_ns{};
  std::array<std::int64_t, kNumHostPhaseKinds>
      host_by_phase_ns{};  // kOther: the rest of the thread
  std::int64_t forbidden_calls = 0;
  std::int64_t decode_bytes = 0;  // read by decode steps
  std::int64_t decode_ns = 0;     // their forwards and samplings

  void add(const ClosedLoopWindow& window);
  double busy_share() const;
  double decode_gb_per_s() const;
  double bubble_us_per_step() const;
  double host_us_per_step(HostPhaseKind kind) const;
  // All of the engine thread but waiting and idling.
  double host_work_us_per_step() const;
  // The phase to which most of the bubble is charged.
  HostPhaseKind guilty_phase() const;
};

struct MeasuredRun {
  std::string workload;
  double host_delay_us = 0;
  int num_streams = 1;
  int depth = 1;

  StepStatistics steps;
  StepAccounts accounts;
  // One per repeat: their range is the spread.
  std::vector<double> periods_ms;
  std::vector<double> tokens_per_s;
  std::vector<double> core_shares;  // of the time, the engine thread was on a core
  std::vector<WindowFigures> windows;
  // With what came before and after the windows.
  std::int64_t num_all_tokens = 0;
  std::int64_t num_found_masks = 0;  // sets of legal tokens that the device had to look for

  void add(const ClosedLoopWindow& window);
  double forward_ms() const { return spread_of(steps.forward_ns).median / 1e6; }
  double sampling_ms() const { return spread_of(steps.sampling_ns).median / 1e6; }
  double period_ms() const { return spread_of(steps.period_ns).median / 1e6; }
  // T: a throughput is made of means, also where steps have two typical lengths.
  double mean_period_ms() const { return mean_of(steps.period_ns) / 1e6; }
  double zombie_share() const;
  double new_masks_per_token() const;
};

// Of the repeats: median, least and most.
struct RepeatRange {
  double median = 0;
  double min = 0;
  double max = 0;
};
RepeatRange range_of_repeats(std::vector<double> values);  // all 0 for none

// Another workload against the plain one of the same streams, depth and host delay: medians of full decode steps' periods, each
// repeat compared with itself, less 1.
struct PeriodAgainstPlain {
  std::string workload;
  double host_delay_us = 0;
  int num_streams = 1;
  int depth = 1;
  RepeatRange longer;
};
std::vector<PeriodAgainstPlain> periods_against_plain(std::span<const MeasuredRun> runs);

// Depth d against depth 1, everything else the same: what depth-1 runs predict, what the runs of
// depth d show on the host's clock. Each repeat is compared with itself.
struct OverlapGain {
  std::string workload;
  double host_delay_us = 0;
  int num_streams = 1;
  int depth = 2;
  // Of depth 1: what the prediction is made of.
  double forward_ms = 0;
  double sampling_ms = 0;
  double host_us = 0;        // work per decode step
  double mean_tokens = 0;    // L
  double growing_share = 0;  // s
  double zombie_tax = 0;     // z, of a dead row that costs kDeadRowShare of a live one
  double blocking_ms = 0;    // period of a full decode step
  // Of depth d.
  double pipelined_ms = 0;
  // Gains in tokens per second, everything included.
  RepeatRange predicted;
  RepeatRange observed;
  RepeatRange miss;  // observed - predicted
  RepeatRange by_device;
  RepeatRange by_idle;
};

// For every run with depth > 1 that has a blocking twin.
std::vector<OverlapGain> overlap_gains(std::span<const MeasuredRun> runs,
                                       double dead_row_share = kDeadRowShare);

}  // namespace gapless
