// A device on virtual time: single-threaded, deterministic, without real waiting.
//
// Time. The host has a virtual clock that only moves when the host makes a call (SimTimes says what
// each costs), spends time (host_busy) or waits (Event::synchronize moves it to the event's time).
// Work on a stream takes its scripted duration: it begins when the host has enqueued it, the work
// before it on the stream has ended, and the events that the stream waits for have passed. As an
// event can only be waited for after it was recorded, every begin and end is known as soon as the
// work is enqueued.
//
//     host     |launch|launch|.....synchronize.....|
//     h2d      .......[copy]                       |
//     compute  .............[=====forward=====]    |
//     d2h      ................................[copy]
//
// Effects. What work does to memory happens when the virtual clock passes it, in order of virtual
// time across all streams, so a buffer that is reused too early really holds the wrong bytes. A
// copy is strict: its source is looked at when it begins and when it ends, its destination holds
// kSimScribble in between, and a source (for copy_to_device from its enqueueing on) or destination
// that somebody else writes meanwhile is counted as a race.
//
// Memory on this device is host memory. One thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/host_clock.h"
#include "device/counter_cells.h"
#include "device/device.h"
#include "device/pinned_ranges.h"
#include "sim/sim_faults.h"

namespace gapless {

class SimStream;

inline constexpr std::uint8_t kSimScribble = 0xa5;

// What things cost. The defaults are like an H200's; SimTimes::free() is for exact arithmetic.
struct SimTimes {
  std::int64_t host_call_ns = 500;  // host time of one call that enqueues, records or polls
  std::int64_t launch_latency_ns =
      2500;  // from the end of that call to the earliest begin of the work
  std::int64_t event_latency_ns = 1000;  // from an event to the stream that waits for it
  std::int64_t wake_ns = 500;            // from an event to the host that waits for it
  std::int64_t copy_latency_ns = 1500;   // of every host-device copy
  double copy_bytes_per_ns = 50;         // host-device
  double device_bytes_per_ns = 2000;     // copy_on_device, fill_bytes

  // Every cost 0; copies take no time.
  static SimTimes free();
};

struct SimConfig {
  std::string name = "simulated device";
  SimTimes times;
  SimFaultScript faults;
  std::size_t total_memory_bytes = std::size_t{1} << 30;
  // Device::clock_offset_ns answers this: device clock = host clock - clock_offset_ns.
  std::int64_t clock_offset_ns = 0;
  bool record_timeline = true;
};

// One piece of work on a stream.
struct SimInterval {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::string_view label;
};

// Time in [begin_ns, end_ns) that the intervals (in order of time, as timelines are) cover.
std::int64_t busy_ns_within(const std::vector<SimInterval>& timeline, std::int64_t begin_ns,
                            std::int64_t end_ns);

class SimDevice : public Device {
 public:
  explicit SimDevice(SimConfig config = {});
  // Everything that the device made must be gone.
  ~SimDevice() override;
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  StatusOr<DeviceInfo> info() override;
  DeviceKind kind() const override { return DeviceKind::kSimulated; }
  StatusOr<Buffer> allocate(std::size_t bytes) override;
  StatusOr<PinnedBuffer> allocate_pinned(std::size_t bytes) override;
  StatusOr<std::unique_ptr<Stream>> create_stream(std::string_view name) override;
  StatusOr<std::unique_ptr<Event>> create_event() override;
  StatusOr<std::int64_t> clock_offset_ns() override;
  DeviceCounters counters() const override { return counter_cells_.read(); }

  // The host's virtual time, from 0.
  std::int64_t now_ns() const { return now_ns_; }
  // The host works for so long.
  void host_busy(std::int64_t duration_ns);
  // Of the host's time, what host_clock() slept.
  std::int64_t slept_ns() const { return slept_ns_; }
  // The same two for code that takes a HostClock.
  HostClock& host_clock() { return host_clock_; }

  // The device's clock at the place of the effect that is running: what a stamp kernel writes.
  std::uint64_t device_clock_ns() const;

  // The work of the latest stream of that name; survives the stream. Empty when there is none.
  const std::vector<SimInterval>& timeline(std::string_view stream) const;

  std::int64_t num_races() const { return num_races_; }
  // What the first one was; empty when there was none.
  const std::string& first_race() const { return first_race_; }

  // How far the script of faults has counted: run once without faults, then choose numbers below
  // these.
  const SimFaults& faults() const { return faults_; }

 protected:
  void free_device(void* data) override;
  void free_pinned(void* data) override;

 private:
  friend class SimStream;
  friend class SimEvent;
  friend class SimGraph;

  class VirtualHostClock : public HostClock {
   public:
    explicit VirtualHostClock(SimDevice& device) : device_(device) {}
    std::int64_t now_ns() override { return device_.now_ns(); }
    void spend_ns(std::int64_t duration_ns) override { device_.host_busy(duration_ns); }
    void sleep_until_ns(std::int64_t time_ns) override {
      const std::int64_t duration_ns = std::max<std::int64_t>(0, time_ns - device_.now_ns());
      device_.host_busy(duration_ns);
      device_.slept_ns_ += duration_ns;
    }

   private:
    SimDevice& device_;
  };

  struct StreamTimeline {
    std::string stream;
    std::vector<SimInterval> intervals;
  };

  // Every call starts here: charges the host, and fails when the script says so.
  Status begin_call(SimCall call, std::string_view stream);
  // Moves the host's clock and lets all effects up to then happen.
  void advance_to(std::int64_t time_ns);
  void run_effects();
  void finish_all_work();
  void report_race(std::string description);

  StatusOr<void*> allocate_bytes(SimCall call, std::size_t bytes);
  void free_bytes(void* data);

  const SimConfig config_;
  VirtualHostClock host_clock_{*this};
  std::int64_t slept_ns_ = 0;
  SimFaults faults_;
  DeviceCounterCells counter_cells_;
  PinnedRanges pinned_ranges_;
  std::unordered_map<void*, std::size_t> bytes_by_allocation_;
  std::size_t allocated_bytes_ = 0;
  int num_live_ = 0;  // buffers, streams, events and graphs

  std::int64_t now_ns_ = 0;
  std::int64_t effect_time_ns_ = 0;
  bool running_effects_ = false;
  std::uint64_t next_order_ = 0;  // of enqueueing; breaks ties between effects of one time
  std::vector<SimStream*> streams_;
  std::vector<std::unique_ptr<StreamTimeline>> timelines_;

  std::int64_t num_races_ = 0;
  std::string first_race_;
};

}  // namespace gapless
