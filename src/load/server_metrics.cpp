#include "load/server_metrics.h"

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
  if (name == "gapless_info") gauges.device = label_of(labels, "device");
  if (name == "process_resident_memory_bytes") gauges.resident_bytes = value;
  if (name == "gapless_device_seconds_total") {
    const std::string state = label_of(labels, "state");
    if (state == "busy") gauges.busy_s = value;
    if (state == "starved") gauges.starved_s = value;
    if (state == "bubble") gauges.bubble_s = value;
  }
}

}  // namespace

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
    if (!gauges->busy_s || !gauges->starved_s || !gauges->bubble_s) return std::nullopt;
  }
  const double busy = *after.busy_s - *before.busy_s;
  const double bubble = *after.bubble_s - *before.bubble_s;
  const double all = busy + bubble + *after.starved_s - *before.starved_s;
  if (busy <= 0 || all <= 0) return std::nullopt;
  return DeviceShares{busy / all, bubble / (busy + bubble)};
}

}  // namespace gapless
