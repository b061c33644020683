#include "measure/timeline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace gapless {
namespace {

constexpr double kTimelineLeft = 110;
constexpr double kRight = 20;
constexpr double kWidth = 960;  // of the lanes
constexpr double kLane = 30;
constexpr double kSample = 130;  // height of one sample
constexpr double kTimelineTop = 20;

const char* phase_colour(HostPhaseKind kind) {
  switch (kind) {
    case HostPhaseKind::kPlan:
      return "#c98a1b";
    case HostPhaseKind::kLaunch:
      return "#d1495b";
    case HostPhaseKind::kWait:
      return "#e9e9e9";
    case HostPhaseKind::kCommit:
      return "#2e8b57";
    case HostPhaseKind::kFinalize:
      return "#8a5fbf";
    case HostPhaseKind::kIdle:
    case HostPhaseKind::kOther:
      break;
  }
  return "#bbbbbb";
}

// Neighbouring steps in two shades.
const char* forward_colour(const StepRecord& record) {
  return record.number % 2 == 0 ? "#1f6fb4" : "#5b9bd0";
}
constexpr const char* kSamplingColour = "#f0b429";

struct Scale {
  std::int64_t begin_ns = 0;
  double ns_per_pixel = 1;

  double x(std::int64_t ns) const {
    return kTimelineLeft + static_cast<double>(ns - begin_ns) / ns_per_pixel;
  }
};

std::int64_t begin_of(const TimelineSample& sample) {
  return std::min(sample.records.front().plan_begin_ns, sample.records.front().forward_begin_ns);
}

std::int64_t end_of(const TimelineSample& sample) {
  return std::max(sample.records.back().commit_end_ns, sample.records.back().sampling_end_ns);
}

std::string duration(std::int64_t begin_ns, std::int64_t end_ns) {
  return fmt::format("{:.1f} us", static_cast<double>(end_ns - begin_ns) / 1e3);
}

void draw_interval(Svg& svg, const Scale& scale, double y, std::int64_t begin_ns,
                   std::int64_t end_ns, const char* colour, const std::string& what) {
  const double x = std::clamp(scale.x(begin_ns), kTimelineLeft, kTimelineLeft + kWidth);
  const double end = std::clamp(scale.x(end_ns), kTimelineLeft, kTimelineLeft + kWidth);
  if (end <= x) return;
  svg.rectangle(x, y, std::max(end - x, 0.4), kLane, colour,
                what + ", " + duration(begin_ns, end_ns));
}

void draw_sample(Svg& svg, const TimelineSample& sample, const Scale& scale, double y) {
  svg.text(kTimelineLeft, y + 12, sample.title, TextAnchor::kStart, 13);
  const double host_y = y + 22;
  const double device_y = host_y + kLane + 8;
  svg.text(kTimelineLeft - 8, host_y + 20, "engine thread", TextAnchor::kEnd);
  svg.text(kTimelineLeft - 8, device_y + 20, "device", TextAnchor::kEnd);
  svg.line(kTimelineLeft, host_y + kLane, kTimelineLeft + kWidth, host_y + kLane, "#dddddd");
  svg.line(kTimelineLeft, device_y + kLane, kTimelineLeft + kWidth, device_y + kLane, "#dddddd");
  for (const HostPhase& phase : sample.phases) {
    draw_interval(svg, scale, host_y, phase.begin_ns, phase.end_ns, phase_colour(phase.kind),
                  fmt::format("{} of step {}", host_phase_name(phase.kind), phase.step));
  }
  for (const StepRecord& record : sample.records) {
    draw_interval(svg, scale, device_y, record.forward_begin_ns, record.forward_end_ns,
                  forward_colour(record), fmt::format("forward of step {}", record.number));
    draw_interval(svg, scale, device_y, record.sampling_begin_ns, record.sampling_end_ns,
                  kSamplingColour, fmt::format("sampling of step {}", record.number));
    const double middle = (scale.x(record.forward_begin_ns) + scale.x(record.sampling_end_ns)) / 2;
    if (middle < kTimelineLeft + kWidth) {
      const auto index = record.number - sample.records.front().number;
      svg.text(middle, device_y + 20, fmt::format("{}", index + 1), TextAnchor::kMiddle, 12,
               "#ffffff");
    }
  }
}

void draw_legend(Svg& svg, double y) {
  double x = kTimelineLeft;
  const auto entry = [&](const char* colour, std::string_view name) {
    svg.rectangle(x, y - 10, 12, 12, colour);
    svg.text(x + 16, y, name, TextAnchor::kStart, 11);
    x += 30 + 6.5 * static_cast<double>(name.size());
  };
  for (const HostPhaseKind kind :
       {HostPhaseKind::kPlan, HostPhaseKind::kLaunch, HostPhaseKind::kWait, HostPhaseKind::kCommit,
        HostPhaseKind::kFinalize}) {
    entry(phase_colour(kind), host_phase_name(kind));
  }
  entry("#1f6fb4", "forward");
  entry(kSamplingColour, "sampling");
}

// A bar whose length is a round duration.
void draw_ruler(Svg& svg, const Scale& scale, double y) {
  const double tenth_ns = kWidth * scale.ns_per_pixel / 10;
  const double unit_ns = std::pow(10, std::floor(std::log10(tenth_ns)));
  const double length_ns = unit_ns * (tenth_ns / unit_ns >= 5   ? 5
                                      : tenth_ns / unit_ns >= 2 ? 2
                                                                : 1);
  const double x = kTimelineLeft + kWidth - length_ns / scale.ns_per_pixel;
  svg.line(x, y, kTimelineLeft + kWidth, y, "#333333", 2);
  svg.text((x + kTimelineLeft + kWidth) / 2, y - 5, fmt::format("{:g} us", length_ns / 1e3),
           TextAnchor::kMiddle, 11);
}

}  // namespace

TimelineSample pick_decode_steps(std::string title, std::span<const StepRecord> records,
                                 std::span<const HostPhase> phases, int num_rows, int count) {
  TimelineSample sample{std::move(title), {}, {}};
  std::vector<StepRecord> run;
  for (std::size_t i = records.size() / 2; i < records.size(); ++i) {
    const StepRecord& record = records[i];
    const bool fits =
        record.kind == StepKind::kDecode && record.num_rows == num_rows && record.num_zombies == 0;
    if (!fits) {
      run.clear();
      continue;
    }
    run.push_back(record);
    if (run.size() > sample.records.size()) sample.records = run;
    if (static_cast<int>(run.size()) == count) break;
  }
  if (sample.records.empty()) return sample;
  const std::int64_t begin_ns = begin_of(sample);
  const std::int64_t end_ns = end_of(sample);
  std::copy_if(
      phases.begin(), phases.end(), std::back_inserter(sample.phases),
      [&](const HostPhase& phase) { return phase.end_ns > begin_ns && phase.begin_ns < end_ns; });
  return sample;
}

Svg timeline_svg(std::span<const TimelineSample> samples) {
  const double legend_y = kTimelineTop + kSample * static_cast<double>(samples.size()) + 10;
  Svg svg(kTimelineLeft + kWidth + kRight, legend_y + 20);
  double longest_ns = 1;
  for (const TimelineSample& sample : samples) {
    if (sample.records.empty()) continue;
    longest_ns = std::max(longest_ns, static_cast<double>(end_of(sample) - begin_of(sample)));
  }
  Scale scale;
  scale.ns_per_pixel = longest_ns / kWidth;
  double y = kTimelineTop;
  for (const TimelineSample& sample : samples) {
    if (sample.records.empty()) continue;
    scale.begin_ns = begin_of(sample);
    draw_sample(svg, sample, scale, y);
    y += kSample;
  }
  draw_legend(svg, legend_y);
  draw_ruler(svg, scale, legend_y);
  return svg;
}

}  // namespace gapless
