// A few steps of real runs as a picture: what the engine thread and the device did, on one scale of
// time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "measure/svg.h"
#include "observe/step_record.h"

namespace gapless {

// Consecutive steps of one run.
struct TimelineSample {
  std::string title;
  std::vector<StepRecord> records;
  std::vector<HostPhase> phases;  // those that are outside of the steps' time are left out
};

// The first `count` consecutive decode steps in the middle of the window, with `num_rows` rows, all
// alive; fewer when there are not so many in a row.
TimelineSample pick_decode_steps(std::string title, std::span<const StepRecord> records,
                                 std::span<const HostPhase> phases, int num_rows, int count);

// One pair of lanes (engine thread, device) for each sample, from top to bottom, all beginning with
// their first forward.
Svg timeline_svg(std::span<const TimelineSample> samples);

}  // namespace gapless
