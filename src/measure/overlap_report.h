// The tables and the JSON of `gapless bench overlap`.
#pragma once

#include <boost/json/array.hpp>
#include <span>
#include <string>

#include "measure/measured_run.h"

namespace gapless {

// Forward, sampling and period of every run, with the device's idle time and who caused it.
std::string step_table(std::span<const MeasuredRun> runs);
// The engine thread's microseconds per step of any kind by phase, and per decode step (median).
std::string host_table(std::span<const MeasuredRun> runs);
// Blocking against pipelined: what the blocking runs predict, what the pipelined ones show, by how
// much the one misses the other and why.
std::string gain_table(std::span<const OverlapGain> gains);

// How much longer steps of constrained rows take than plain ones. Empty where nothing plain was measured beside something else.
std::string against_plain_table(std::span<const MeasuredRun> runs);

boost::json::array to_json(std::span<const MeasuredRun> runs);
boost::json::array to_json(std::span<const PeriodAgainstPlain> periods);
boost::json::array to_json(std::span<const OverlapGain> gains);

}  // namespace gapless
