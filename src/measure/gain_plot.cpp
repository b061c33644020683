#include "measure/gain_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace gapless {
namespace {

constexpr std::array kColours{"#1f6fb4", "#d1495b", "#2e8b57", "#8a5fbf",
                              "#c98a1b", "#4d4d4d", "#17a2a2"};
constexpr double kPanel = 380;  // side of a panel's drawing area
constexpr double kTop = 50;
constexpr double kLeft = 70;
constexpr double kLegend = 145;

struct Axis {
  double low = 0;
  double high = 1;
  double step = 0.2;

  static Axis around(double low, double high) {
    const double range = std::max(high - low, 1e-3);
    const double magnitude = std::pow(10, std::floor(std::log10(range)));
    double step = magnitude;
    for (const double factor : {0.1, 0.2, 0.5}) {
      if (range / (magnitude * factor) <= 6) {
        step = magnitude * factor;
        break;
      }
    }
    return {std::floor(low / step) * step, std::ceil(high / step) * step, step};
  }
  double share(double value) const { return (value - low) / (high - low); }
};

struct Panel {
  double x = 0;
  Axis across, up;

  double to_x(double value) const { return x + across.share(value) * kPanel; }
  double to_y(double value) const { return kTop + (1 - up.share(value)) * kPanel; }
};

std::string percent_label(double share) {
  return fmt::format("{:.0f} %", std::round(100 * share) + 0.0);  // no "-0"
}

template <typename AcrossLabel>
void draw_frame(Svg& svg, const Panel& panel, std::string_view across, std::string_view up,
                const AcrossLabel& across_label) {
  for (double v = panel.across.low; v <= panel.across.high + panel.across.step / 2;
       v += panel.across.step) {
    svg.line(panel.to_x(v), kTop, panel.to_x(v), kTop + kPanel, "#e6e6e6");
    svg.text(panel.to_x(v), kTop + kPanel + 16, across_label(v), TextAnchor::kMiddle, 11);
  }
  for (double v = panel.up.low; v <= panel.up.high + panel.up.step / 2; v += panel.up.step) {
    svg.line(panel.x, panel.to_y(v), panel.x + kPanel, panel.to_y(v), "#e6e6e6");
    svg.text(panel.x - 6, panel.to_y(v) + 4, percent_label(v), TextAnchor::kEnd, 11);
  }
  svg.text(panel.x + kPanel / 2, kTop + kPanel + 34, across, TextAnchor::kMiddle);
  svg.text(panel.x, kTop - 8, up);
}

std::string series_name(const OverlapGain& gain) {
  return fmt::format("{}, {} streams, depth {}", gain.workload, gain.num_streams, gain.depth);
}

std::string tooltip(const OverlapGain& gain) {
  return fmt::format("{}, delay {:.0f} us: predicted {:+.1f} %, observed {:+.1f} %",
                     series_name(gain), gain.host_delay_us, 100 * gain.predicted.median,
                     100 * gain.observed.median);
}

void draw_scatter(Svg& svg, std::span<const OverlapGain> gains,
                  const std::vector<std::string>& workloads) {
  double low = 0, high = 0.02;
  for (const OverlapGain& gain : gains) {
    for (const double value : {gain.predicted.median, gain.observed.min, gain.observed.max}) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  const Axis axis = Axis::around(low, high);
  const Panel panel{kLeft, axis, axis};
  draw_frame(svg, panel, "predicted gain", "observed gain", percent_label);
  constexpr double kBand = 0.02;
  svg.line(panel.to_x(axis.low), panel.to_y(axis.low), panel.to_x(axis.high), panel.to_y(axis.high),
           "#999999");
  for (const double shift : {-kBand, kBand}) {
    const double begin = std::max(axis.low, axis.low - shift);
    const double end = std::min(axis.high, axis.high - shift);
    svg.line(panel.to_x(begin), panel.to_y(begin + shift), panel.to_x(end), panel.to_y(end + shift),
             "#bbbbbb", 1, true);
  }
  for (const OverlapGain& gain : gains) {
    const auto workload = std::find(workloads.begin(), workloads.end(), gain.workload);
    const char* colour =
        kColours[static_cast<std::size_t>(workload - workloads.begin()) % kColours.size()];
    const double x = panel.to_x(gain.predicted.median);
    svg.line(x, panel.to_y(gain.observed.min), x, panel.to_y(gain.observed.max), colour, 1);
    svg.circle(x, panel.to_y(gain.observed.median), 4, colour, true, tooltip(gain));
  }
  double y = kTop + kPanel + 60;
  for (std::size_t i = 0; i < workloads.size(); ++i) {
    const double x = kLeft + 130.0 * static_cast<double>(i % 3);
    svg.circle(x, y - 4, 4, kColours[i % kColours.size()], true);
    svg.text(x + 8, y, workloads[i], TextAnchor::kStart, 11);
    if (i % 3 == 2) y += 16;
  }
  svg.text(kLeft, kTop + kPanel + 112, "across: from depth-1 runs alone; up: runs of that depth",
           TextAnchor::kStart, 11);
  svg.text(kLeft, kTop + kPanel + 127,
           "bars: least to most of the repeats; band: 2 points; answers of a few tokens left out",
           TextAnchor::kStart, 11);
}

void draw_sweep(Svg& svg, std::span<const OverlapGain> gains,
                const std::vector<double>& delays_us) {
  double low = 0, high = 0.02;
  std::vector<std::string> series;
  for (const OverlapGain& gain : gains) {
    low = std::min({low, gain.predicted.median, gain.observed.median});
    high = std::max({high, gain.predicted.median, gain.observed.median});
    if (std::find(series.begin(), series.end(), series_name(gain)) == series.end()) {
      series.push_back(series_name(gain));
    }
  }
  const Panel panel{2 * kLeft + kPanel + 20, Axis::around(0, delays_us.back()),
                    Axis::around(low, high)};
  draw_frame(svg, panel, "artificial host work per step, us", "gain",
             [](double us) { return fmt::format("{:.0f}", us); });
  for (std::size_t s = 0; s < series.size(); ++s) {
    const char* colour = kColours[s % kColours.size()];
    const OverlapGain* before = nullptr;
    for (const OverlapGain& gain : gains) {
      if (series_name(gain) != series[s]) continue;
      if (before != nullptr) {
        svg.line(panel.to_x(before->host_delay_us), panel.to_y(before->predicted.median),
                 panel.to_x(gain.host_delay_us), panel.to_y(gain.predicted.median), colour, 1.5);
      }
      svg.circle(panel.to_x(gain.host_delay_us), panel.to_y(gain.observed.median), 4, colour, true,
                 tooltip(gain));
      before = &gain;
    }
    svg.text(panel.x, kTop + kPanel + 60 + 16 * static_cast<double>(s),
             fmt::format("{} (line: predicted, points: observed)", series[s]), TextAnchor::kStart,
             11, colour);
  }
}

}  // namespace

Svg gain_plot(std::span<const OverlapGain> all_gains, std::string_view title) {
  std::vector<OverlapGain> gains;
  std::copy_if(all_gains.begin(), all_gains.end(), std::back_inserter(gains),
               [](const OverlapGain& gain) { return gain.mean_tokens >= kMinPlottedTokens; });
  std::vector<std::string> workloads;
  std::set<double> delays;
  for (const OverlapGain& gain : gains) {
    delays.insert(gain.host_delay_us);
    if (std::find(workloads.begin(), workloads.end(), gain.workload) == workloads.end()) {
      workloads.push_back(gain.workload);
    }
  }
  const bool sweep = delays.size() > 1;
  Svg svg((sweep ? 2 : 1) * (kPanel + kLeft + 20) + 20, kTop + kPanel + kLegend);
  svg.text(kLeft, 22, title, TextAnchor::kStart, 14);
  if (gains.empty()) return svg;
  draw_scatter(svg, gains, workloads);
  if (sweep) draw_sweep(svg, gains, {delays.begin(), delays.end()});
  return svg;
}

}  // namespace gapless
