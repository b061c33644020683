#include "observe/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
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

  void name_track(Track track, std::string_view name) {
    next();
    fmt::format_to(std::back_inserter(text_),
                   R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
                   static_cast<int>(track), name);
  }

  // Empty intervals are left out.
  void slice(Track track, std::string_view name, std::int64_t begin_ns, std::int64_t end_ns,
             std::string_view args) {
    if (end_ns <= begin_ns) return;
    next();
    fmt::format_to(
        std::back_inserter(text_),
        R"({{"ph":"X","pid":1,"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
        static_cast<int>(track), name, static_cast<double>(begin_ns - zero_ns_) * 1e-3,
        static_cast<double>(end_ns - begin_ns) * 1e-3, args);
  }

  std::string take() && {
    return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[" + text_ + "\n]}\n";
  }

 private:
  void next() { text_ += text_.empty() ? "\n" : ",\n"; }

  const std::int64_t zero_ns_;
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

}  // namespace

std::string chrome_trace(std::span<const StepRecord> records, std::span<const HostPhase> phases,
                         std::span<const IdlePart> idle_parts) {
  std::int64_t zero_ns = std::numeric_limits<std::int64_t>::max();
  for (const StepRecord& record : records) {
    zero_ns = std::min({zero_ns, record.plan_begin_ns, record.forward_begin_ns});
  }
  for (const HostPhase& phase : phases) zero_ns = std::min(zero_ns, phase.begin_ns);
  for (const IdlePart& part : idle_parts) zero_ns = std::min(zero_ns, part.begin_ns);

  TraceText trace(zero_ns);
  trace.name_track(kHostTrack, "engine thread");
  trace.name_track(kDeviceTrack, "device: compute");
  trace.name_track(kCopyTrack, "copies (bounds)");
  trace.name_track(kZombieTrack, "zombies");
  trace.name_track(kGapTrack, "device: gaps");
  for (const HostPhase& phase : phases) {
    trace.slice(kHostTrack, host_phase_name(phase.kind), phase.begin_ns, phase.end_ns,
                fmt::format(R"("step":{})", phase.step));
  }
  for (const IdlePart& part : idle_parts) {
    trace.slice(kGapTrack, device_activity_name(part.state), part.begin_ns, part.end_ns,
                fmt::format(R"("phase":"{}")", host_phase_name(part.phase)));
  }
  for (const StepRecord& record : records) add_step(record, trace);
  return std::move(trace).take();
}

std::string chrome_trace(const Ledger& ledger, std::size_t most_steps) {
  const std::size_t most_parts =
      most_steps > SIZE_MAX / kPhasesPerStep ? SIZE_MAX : most_steps * kPhasesPerStep;
  std::vector<IdlePart> idle_parts = ledger.idle_parts(most_parts);
  const std::vector<StepRecord> records = ledger.records(most_steps);
  // There are fewer gaps than steps: older ones would stand alone.
  if (!records.empty()) {
    std::erase_if(idle_parts, [begin_ns = records.front().plan_begin_ns](const IdlePart& part) {
      return part.end_ns < begin_ns;
    });
  }
  return chrome_trace(records, ledger.phases(most_parts), idle_parts);
}

Status write_chrome_trace(const Ledger& ledger, const std::filesystem::path& path) {
  const std::string text = chrome_trace(ledger);
  return write_file(path, std::as_bytes(std::span(text)));
}

}  // namespace gapless
