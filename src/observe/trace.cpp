#include "observe/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/file_bytes.h"

namespace gapless {
namespace {

enum Track : int {
  kHostTrack = 1,
  kDeviceTrack = 2,
  kCopyTrack = 3,
  kZombieTrack = 4,
  kGapTrack = 5
};

class TraceText {
 public:
  explicit TraceText(std::int64_t zero_ns) : zero_ns_(zero_ns) {}

  // What follows is the next device's.
  void begin_device(std::string_view name) {
    ++device_;
    next();
    fmt::format_to(std::back_inserter(text_),
                   R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}"}}}})", device_,
                   name);
  }
  void name_track(Track track, std::string_view name) {
    next();
    fmt::format_to(std::back_inserter(text_),
                   R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
                   device_, static_cast<int>(track), name);
  }

  // Empty intervals are left out.
  void slice(Track track, std::string_view name, std::int64_t begin_ns, std::int64_t end_ns,
             std::string_view args) {
    if (end_ns <= begin_ns) return;
    next();
    fmt::format_to(
        std::back_inserter(text_),
        R"({{"ph":"X","pid":{},"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
        device_, static_cast<int>(track), name, static_cast<double>(begin_ns - zero_ns_) * 1e-3,
        static_cast<double>(end_ns - begin_ns) * 1e-3, args);
  }

  std::string take() && {
    return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[" + text_ + "\n]}\n";
  }

 private:
  void next() { text_ += text_.empty() ? "\n" : ",\n"; }

  const std::int64_t zero_ns_;
  int device_ = 0;
  std::string text_;
};

void add_step(const StepRecord& record, TraceText& trace) {
  const std::string args = fmt::format(
      R"("step":{},"slot":{},"rows":{},"zombies":{},"host_masked":{},"tokens":{})", record.number,
      record.slot, record.num_rows, record.num_zombies, record.num_host_masked, record.num_tokens);
  const char* name = step_kind_name(record.kind);
  trace.slice(kDeviceTrack, name, record.forward_begin_ns, record.forward_end_ns, args);
  trace.slice(kDeviceTrack, "sampling", record.sampling_begin_ns, record.sampling_end_ns, args);
  trace.slice(kCopyTrack, "inputs up", record.launch_begin_ns,
              std::min(record.launch_end_ns, record.forward_begin_ns), args);
  trace.slice(kCopyTrack, "outputs down", record.sampling_end_ns, record.wait_end_ns, args);
  if (record.num_zombies > 0) {
    trace.slice(kZombieTrack, fmt::format("{} of {} rows", record.num_zombies, record.num_rows),
                record.forward_begin_ns, record.sampling_end_ns, args);
  }
}

std::int64_t earliest_ns(const std::vector<DeviceTrace>& devices) {
  std::int64_t zero_ns = std::numeric_limits<std::int64_t>::max();
  for (const DeviceTrace& device : devices) {
    for (const StepRecord& record : device.records) {
      zero_ns = std::min({zero_ns, record.plan_begin_ns, record.forward_begin_ns});
    }
    for (const HostPhase& phase : device.phases) zero_ns = std::min(zero_ns, phase.begin_ns);
    for (const IdlePart& part : device.idle_parts) zero_ns = std::min(zero_ns, part.begin_ns);
  }
  return zero_ns;
}

void add_device(const DeviceTrace& device, TraceText& trace) {
  trace.begin_device(device.device);
  trace.name_track(kHostTrack, "engine thread");
  trace.name_track(kDeviceTrack, "device: compute");
  trace.name_track(kCopyTrack, "copies (bounds)");
  trace.name_track(kZombieTrack, "zombies");
  trace.name_track(kGapTrack, "device: gaps");
  for (const HostPhase& phase : device.phases) {
    trace.slice(kHostTrack, host_phase_name(phase.kind), phase.begin_ns, phase.end_ns,
                fmt::format(R"("step":{})", phase.step));
  }
  for (const IdlePart& part : device.idle_parts) {
    trace.slice(kGapTrack, device_activity_name(part.state), part.begin_ns, part.end_ns,
                fmt::format(R"("phase":"{}")", host_phase_name(part.phase)));
  }
  for (const StepRecord& record : device.records) add_step(record, trace);
}

}  // namespace

DeviceTrace trace_of(const Ledger& ledger, std::string device, std::size_t most_steps) {
  const std::size_t most_parts =
      most_steps > SIZE_MAX / kPhasesPerStep ? SIZE_MAX : most_steps * kPhasesPerStep;
  DeviceTrace trace{.device = std::move(device),
                    .records = {},
                    .phases = {},
                    .idle_parts = ledger.idle_parts(most_parts)};
  trace.records = ledger.records(most_steps);
  // There are fewer gaps than steps: older ones would stand alone.
  if (!trace.records.empty()) {
    std::erase_if(trace.idle_parts, [begin_ns = trace.records.front().plan_begin_ns](
                                        const IdlePart& part) { return part.end_ns < begin_ns; });
  }
  trace.phases = ledger.phases(most_parts);
  return trace;
}

std::string chrome_trace(const std::vector<DeviceTrace>& devices) {
  TraceText trace(earliest_ns(devices));
  for (const DeviceTrace& device : devices) add_device(device, trace);
  return std::move(trace).take();
}

Status write_chrome_trace(const std::vector<DeviceTrace>& devices,
                          const std::filesystem::path& path) {
  const std::string text = chrome_trace(devices);
  return write_file(path, std::as_bytes(std::span(text)));
}

}  // namespace gapless
