#include "observe/device_time.h"

#include <algorithm>
#include <numeric>

namespace gapless {

const char* device_activity_name(DeviceActivity state) {
  switch (state) {
    case DeviceActivity::kBusy:
      return "busy";
    case DeviceActivity::kPreparing:
      return "preparing";
    case DeviceActivity::kStarved:
      return "starved";
    case DeviceActivity::kBubble:
      return "bubble";
  }
  return "unknown";
}

std::int64_t DeviceTime::bubble_ns() const {
  return std::accumulate(ns_.begin() + kBubbleAt, ns_.end(), std::int64_t{0});
}

std::int64_t DeviceTime::all_ns() const {
  return std::accumulate(ns_.begin(), ns_.end(), std::int64_t{0});
}

void DeviceTime::add(const IdlePart& part) {
  const std::int64_t ns = part.end_ns - part.begin_ns;
  switch (part.state) {
    case DeviceActivity::kBusy:
      ns_[kBusyAt] += ns;
      return;
    case DeviceActivity::kPreparing:
      ns_[kPreparingAt] += ns;
      return;
    case DeviceActivity::kStarved:
      ns_[kStarvedAt] += ns;
      return;
    case DeviceActivity::kBubble:
      ns_[kBubbleAt + static_cast<std::size_t>(part.phase)] += ns;
      return;
  }
}

DeviceTime DeviceTime::operator-(const DeviceTime& before) const {
  DeviceTime difference;
  for (std::size_t i = 0; i < ns_.size(); ++i) difference.ns_[i] = ns_[i] - before.ns_[i];
  return difference;
}

bool DeviceTime::advance_towards(const DeviceTime& estimate, std::int64_t elapsed_ns) {
  std::array<double, std::tuple_size_v<decltype(ns_)>> lags{};
  for (std::size_t i = 0; i < ns_.size(); ++i) {
    lags[i] = static_cast<double>(std::max<std::int64_t>(0, estimate.ns_[i] - ns_[i]));
  }
  const double all_lags = std::accumulate(lags.begin(), lags.end(), 0.0);
  if (all_lags <= 0) return false;
  std::int64_t left_ns = elapsed_ns;
  for (std::size_t i = 0; i < ns_.size(); ++i) {
    const auto share =
        static_cast<std::int64_t>(lags[i] / all_lags * static_cast<double>(elapsed_ns));
    ns_[i] += std::min(share, left_ns);
    left_ns -= std::min(share, left_ns);
  }
  // What rounding left over.
  const auto furthest = std::max_element(lags.begin(), lags.end()) - lags.begin();
  ns_[static_cast<std::size_t>(furthest)] += left_ns;
  return true;
}

}  // namespace gapless
