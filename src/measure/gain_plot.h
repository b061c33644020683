// Predicted against observed gain of pipelining, as a picture.
#pragma once

#include <span>

#include "measure/measured_run.h"
#include "measure/svg.h"

namespace gapless {

// Shorter answers are left out: prefills are most of their time, and their gain far from the
// others'.
inline constexpr double kMinPlottedTokens = 10;

// Left: every gain as a point, predicted from depth 1 across, observed up (medians of the repeats;
// a bar from least to most), with the diagonal and a band of two points around it. Right, when host
// delays were swept: the gain over the delay, predicted as lines and observed as points.
Svg gain_plot(std::span<const OverlapGain> gains, std::string_view title);

}  // namespace gapless
