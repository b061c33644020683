// What a window of step records says about the device's time. All times come from the device's own
// stamps.
//
// Every step owns the time from the end of the step before it to its own end (the bubble in front
// of it included), so the periods of all steps of a window add up to its length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "observe/step_record.h"

namespace gapless {

// Order statistics of a series; all 0 for an empty one.
struct Spread {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  std::int64_t count = 0;
};
Spread spread_of(std::vector<double> values);
double mean_of(std::span<const double> values);  // 0 for an empty series

// The engine thread's work on one step: plan, launch, finalize, commit.
double host_work_ns(const StepRecord& record);

// Device time, in nanoseconds, of one window with B streams.
struct StepStatistics {
  int num_streams = 0;  // B
  // Of full decode steps: B rows, all of them alive.
  std::vector<double> forward_ns;
  std::vector<double> sampling_ns;
  std::vector<double> step_ns;    // from the forward's begin to the sampling's end
  std::vector<double> period_ns;  // of those that follow a decode step
  // Of decode steps whose rows are all zombies: what is left of a step that exits early.
  std::vector<double> dead_period_ns;

  // Of decode steps of any sort that follow a decode step, and the rows in them that were alive.
  double steady_ns = 0;
  std::int64_t num_steady_tokens = 0;
  // Of full decode steps that follow a fill step, whose period may be another one.
  std::vector<double> after_fill_period_ns;
  // The engine thread's work for each decode step: plan, launch, commit, finalize.
  std::vector<double> host_work_ns;

  double elapsed_ns = 0;  // from the end of the first record to the end of the last one
  double decode_ns = 0;   // periods of the decode steps in it
  double fill_ns = 0;     // periods of the encode and prefill steps
  std::int64_t num_decode_steps = 0;
  std::int64_t num_fill_steps = 0;
  std::int64_t num_rows = 0;           // of decode steps
  std::int64_t num_zombies = 0;        // of those rows
  std::int64_t num_decode_tokens = 0;  // rows of decode steps that were alive
  std::int64_t num_first_tokens = 0;   // answers that began: rows of prefill steps
  std::int64_t num_cached_tokens = 0;  // of full decode steps, all rows together
  std::int64_t num_full_steps = 0;

  double tokens_per_s() const;
  // Of the decode steps that follow a decode step alone.
  double decode_tokens_per_s() const;
  // L: tokens per answer.
  double mean_answer_tokens() const;
  double mean_context() const;

  // Another window of the same thing.
  void add(const StepStatistics& other);
};

// `records` in order of launch.
StepStatistics step_statistics(std::span<const StepRecord> records, int num_streams);

}  // namespace gapless
