// Predicted against observed gain of pipelining, as a picture.
#pragma once

#include <span>

#include "bench/measured_run.h"
#include "bench/svg.h"

namespace gapless {

// Left: every gain as a point, predicted across, observed up (filled: decode steps alone against
// T_block / T_pipe x (1 - z); hollow: everything included), with the diagonal and a band of two
// points around it. Right, when host delays were swept: the gain over the delay, predicted as
// lines and observed as points.
Svg gain_plot(std::span<const OverlapGain> gains, std::string_view title);

}  // namespace gapless
