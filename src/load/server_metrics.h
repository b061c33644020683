// What a server says about itself on /metrics, as far as load runs want to know.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gapless {

// Nothing where the server has no such metric.
struct ServerGauges {
  std::string device;
  std::optional<double> busy_s, starved_s, bubble_s;  // of the device, since its first step
  std::optional<double> resident_bytes;
};

// Prometheus text.
ServerGauges parse_server_gauges(std::string_view text);

struct DeviceShares {
  double busy = 0;    // of all time
  double bubble = 0;  // of the time in which there was something to do
};
// Between two readings; nothing where the server does not say, or its device did nothing.
std::optional<DeviceShares> device_shares(const ServerGauges& before, const ServerGauges& after);

}  // namespace gapless
