// Predicted against observed gain of pipelining, as a picture.
#pragma once

#include <span>

#include "measure/measured_run.h"
#include "measure/svg.h"

namespace gapless {

// Shorter answers are left out: their gain is far below zero, and the formula for decode steps says
// nothing about them.
inline constexpr double kMinPlottedTokens = 10;

// Left: every gain as a point, predicted across, observed up (filled: decode steps alone against
// T_block / T_pipe x (1 - z); hollow: everything included), with the diagonal and a band of two
// points around it. Right, when host delays were swept: the gain over the delay, predicted as
// lines and observed as points.
Svg gain_plot(std::span<const OverlapGain> gains, std::string_view title);

}  // namespace gapless
