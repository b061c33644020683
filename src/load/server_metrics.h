// What a server says about itself on /metrics, as far as load runs want to know.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gapless {

// Nothing where the server has no such metric. Of several devices, the sum.
struct ServerGauges {
  std::vector<std::string> devices;  // what they are called: "NVIDIA H200"
  // "NVIDIA H200", "2 x NVIDIA H200"
  std::string device() const;
  std::optional<double> busy_s, preparing_s, starved_s, bubble_s;  // of the devices
  std::optional<double> resident_bytes;
  std::optional<double> engine_thread_s;    // its work, all phases
  std::map<std::string, double> num_steps;  // by kind
  std::map<std::string, double> step_s;     // device time by kind of step
  struct Stage {
    std::string name;
    double seconds = 0;
    double num_requests = 0;
  };
  std::vector<Stage> stages;  // of requests on their way to their first text, in the server's order
};

// Prometheus text.
ServerGauges parse_server_gauges(std::string_view text);

struct DeviceShares {
  double busy = 0;       // of all time
  double preparing = 0;  // of all time
  double starved = 0;    // of all time
  double bubble = 0;     // of the time in which there was something to run
};
// Between two readings; nothing where the server does not say, or its device did nothing.
std::optional<DeviceShares> device_shares(const ServerGauges& before, const ServerGauges& after);

// The engine thread's work per step of any kind, in microseconds, between two readings.
std::optional<double> host_us_per_step(const ServerGauges& before, const ServerGauges& after);

// A mean by name, milliseconds.
struct NamedMean {
  std::string name;
  double ms = 0;
};
// What a request spent in each stage, of those answered between two readings.
std::vector<NamedMean> mean_stages(const ServerGauges& before, const ServerGauges& after);
// What the device needed for a step of each kind.
std::vector<NamedMean> mean_steps(const ServerGauges& before, const ServerGauges& after);

}  // namespace gapless
