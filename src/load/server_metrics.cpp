#include "load/server_metrics.h"

#include <algorithm>
#include <cstdlib>

namespace gapless {
namespace {

std::string label_of(std::string_view labels, std::string_view name) {
  const std::string mark = std::string(name) + "=\"";
  const std::size_t at = labels.find(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view value = labels.substr(at + mark.size());
  return std::string(value.substr(0, value.find('"')));
}

void read_sample(std::string_view line, ServerGauges& gauges) {
  const std::size_t space = line.rfind(' ');
  if (space == std::string_view::npos) return;
  const double value = std::strtod(std::string(line.substr(space + 1)).c_str(), nullptr);
  const std::string_view sample = line.substr(0, space);
  const std::size_t brace = sample.find('{');
  const std::string_view name = sample.substr(0, brace);
  const std::string_view labels = brace == std::string_view::npos ? "" : sample.substr(brace);
  if (name == "gapless_info") gauges.devices.push_back(label_of(labels, "device_name"));
  if (name == "process_resident_memory_bytes") gauges.resident_bytes = value;
  if (name == "gapless_device_seconds_total") {
    const std::string state = label_of(labels, "state");
    const auto add = [value](std::optional<double>& sum) { sum = sum.value_or(0) + value; };
    if (state == "busy") add(gauges.busy_s);
    if (state == "preparing") add(gauges.preparing_s);
    if (state == "starved") add(gauges.starved_s);
    if (state == "bubble") add(gauges.bubble_s);
  }
  if (name == "gapless_engine_thread_seconds_total") {
    gauges.engine_thread_s = gauges.engine_thread_s.value_or(0) + value;
  }
  if (name == "gapless_steps_total") gauges.num_steps[label_of(labels, "kind")] += value;
  if (name == "gapless_step_seconds_total") gauges.step_s[label_of(labels, "kind")] += value;
  if (name == "gapless_request_stage_seconds_sum") {
    gauges.stages.push_back({label_of(labels, "stage"), value, 0});
  }
  // Of each stage the count follows its sum.
  if (name == "gapless_request_stage_seconds_count" && !gauges.stages.empty()) {
    gauges.stages.back().num_requests = value;
  }
}

double sum_of(const std::map<std::string, double>& values) {
  double sum = 0;
  for (const auto& [name, value] : values) sum += value;
  return sum;
}

double value_of(const std::map<std::string, double>& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? 0 : found->second;
}

}  // namespace

std::string ServerGauges::device() const {
  if (devices.empty()) return "";
  const bool alike = std::count(devices.begin(), devices.end(), devices[0]) == std::ssize(devices);
  if (alike && devices.size() > 1) {
    return std::to_string(devices.size()) + " x " + devices[0];
  }
  std::string names = devices[0];
  for (std::size_t i = 1; i < devices.size(); ++i) names += ", " + devices[i];
  return names;
}

ServerGauges parse_server_gauges(std::string_view text) {
  ServerGauges gauges;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!line.starts_with('#')) read_sample(line, gauges);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return gauges;
}

std::optional<DeviceShares> device_shares(const ServerGauges& before, const ServerGauges& after) {
  for (const ServerGauges* gauges : {&before, &after}) {
    if (!gauges->busy_s || !gauges->preparing_s || !gauges->starved_s || !gauges->bubble_s) {
      return std::nullopt;
    }
  }
  const double busy = *after.busy_s - *before.busy_s;
  const double preparing = *after.preparing_s - *before.preparing_s;
  const double starved = *after.starved_s - *before.starved_s;
  const double bubble = *after.bubble_s - *before.bubble_s;
  const double all = busy + preparing + starved + bubble;
  if (busy <= 0 || all <= 0) return std::nullopt;
  return DeviceShares{busy / all, preparing / all, starved / all, bubble / (busy + bubble)};
}

std::optional<double> host_us_per_step(const ServerGauges& before, const ServerGauges& after) {
  const double num_steps = sum_of(after.num_steps) - sum_of(before.num_steps);
  if (!before.engine_thread_s || !after.engine_thread_s || num_steps <= 0) return std::nullopt;
  return (*after.engine_thread_s - *before.engine_thread_s) / num_steps * 1e6;
}

std::vector<NamedMean> mean_stages(const ServerGauges& before, const ServerGauges& after) {
  std::vector<NamedMean> means;
  if (before.stages.size() != after.stages.size()) return means;
  for (std::size_t i = 0; i < after.stages.size(); ++i) {
    const ServerGauges::Stage& stage = after.stages[i];
    const double num_requests = stage.num_requests - before.stages[i].num_requests;
    if (num_requests <= 0) continue;
    means.push_back({stage.name, (stage.seconds - before.stages[i].seconds) / num_requests * 1e3});
  }
  return means;
}

std::vector<NamedMean> mean_steps(const ServerGauges& before, const ServerGauges& after) {
  std::vector<NamedMean> means;
  for (const auto& [kind, seconds] : after.step_s) {
    const double num_steps = value_of(after.num_steps, kind) - value_of(before.num_steps, kind);
    if (num_steps <= 0) continue;
    means.push_back({kind, (seconds - value_of(before.step_s, kind)) / num_steps * 1e3});
  }
  return means;
}

}  // namespace gapless
