// The bubble ledger: where the device's time went, and which host phase let it idle.
//
// Every committed step adds one record. Device intervals (forward, sampling) are merged into a
// union:
//   busy      inside some interval
//   idle      between two, split by what the host was doing meanwhile (device_time.h):
//     starved    the loop had nothing queued (HostPhaseKind::kIdle), and nobody had asked
//     preparing  the loop had nothing queued, but requests were on their way to it
//     bubble     work was queued; charged to the host phases that overlap the gap, and to kOther
//                where none does
//
// Two ways to read it:
//   totals()       committed steps since restart(), to the nanosecond of the device's clock:
//                  busy + preparing + starved + bubble = the time from the first interval's begin
//                  to the last one's end. Benchmarks take these.
//   device_time()  all time since start() up to the moment of asking, the step or the pause that
//                  goes on included, as it looks at that moment. What a commit corrects later is
//                  made good by later readings: no state ever goes back, and the states always add
//                  up to the time since start(). Counters of /metrics take these.
//
// Zombie share = rows of decode steps that were finalized before the step was committed, over all
// rows of decode steps.
//
// The device's clock is brought to the host's by an offset measured at the start. Clocks drift, so
// the ledger corrects it by causality: a forward cannot begin before its launch, and a sampling
// cannot end after its outputs were read. Busy and idle totals come from the device's clock alone.
//
// Threads: begin_preparing, end_preparing and what reads from any; the rest from the engine thread.
// No allocation after the constructor but in records(), phases() and idle_parts().
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/limits.h"
#include "observe/device_time.h"
#include "observe/ring.h"
#include "observe/step_record.h"

namespace gapless {

// What a decode step has to read; for bytes moved over bandwidth. 0: unknown.
struct StepBytes {
  std::int64_t weight_bytes = 0;    // once per decode step
  std::int64_t kv_token_bytes = 0;  // per cached token of each live row
};

struct LedgerTotals {
  std::array<std::int64_t, 3> num_steps{};    // by StepKind
  std::array<std::int64_t, 3> forward_ns{};   // by StepKind
  std::array<std::int64_t, 3> sampling_ns{};  // by StepKind
  std::int64_t num_decode_rows = 0;
  std::int64_t num_zombie_rows = 0;
  std::int64_t decode_bytes = 0;
  std::int64_t busy_ns = 0;
  std::int64_t preparing_ns = 0;
  std::int64_t starved_ns = 0;
  std::int64_t bubble_ns = 0;
  std::array<std::int64_t, kNumHostPhaseKinds> bubble_by_phase_ns{};
  std::array<std::int64_t, kNumHostPhaseKinds> host_ns{};  // host time by phase

  std::int64_t steps() const { return num_steps[0] + num_steps[1] + num_steps[2]; }
  std::int64_t elapsed_ns() const { return busy_ns + preparing_ns + starved_ns + bubble_ns; }
  double busy_share() const { return ratio(busy_ns, elapsed_ns()); }
  // Of the time in which there was something to do.
  double bubble_share() const { return ratio(bubble_ns, busy_ns + bubble_ns); }
  double zombie_share() const { return ratio(num_zombie_rows, num_decode_rows); }
  // What decode steps read, over the device time that they took.
  double decode_gb_per_s() const {
    constexpr auto kDecode = static_cast<std::size_t>(StepKind::kDecode);
    return ratio(decode_bytes, forward_ns[kDecode] + sampling_ns[kDecode]);
  }
  // The engine thread's own work: everything but waiting and idling.
  std::int64_t host_work_ns() const;

 private:
  static double ratio(std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// Plan, launch, wait, commit, finalize and other, with room to spare.
inline constexpr std::size_t kPhasesPerStep = 8;

class Ledger {
 public:
  // Keeps the last `capacity` records, and phases and idle parts for as many steps.
  explicit Ledger(std::size_t capacity, StepBytes bytes = {});

  // host time = device time + offset.
  void set_clock_offset_ns(std::int64_t offset_ns);
  // device_time() counts from here. Before the first step.
  void start(std::int64_t now_ns);

  void add_phase(HostPhaseKind kind, std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns);
  // The loop has nothing to do from `since_ns` on, until add_phase(kIdle).
  void idle_since(std::int64_t since_ns);
  // The step is on its way to the device; it leaves by add() or by abandoned(). In launch order.
  void launched(std::int64_t step, std::int64_t begin_ns);
  void abandoned(std::int64_t step);
  // Device times in `record` are the device's own; steps come in launch order.
  // Returns the step's end on the host's clock.
  std::int64_t add(StepRecord record);

  // A request exists since then, on its way to the loop, which has it or will never have it from
  // `now_ns` on.
  void begin_preparing(std::int64_t since_ns);
  void end_preparing(std::int64_t now_ns);

  // Zeroes the totals, as at the end of a warm-up: the gap before the next step is not counted.
  void restart();

  LedgerTotals totals() const;
  // Host clock. All 0 before start().
  DeviceTime device_time(std::int64_t now_ns) const;
  // The last `most` of them, oldest first. Whoever asks holds up the engine thread while they are
  // copied: a few microseconds for a hundred.
  std::vector<StepRecord> records(std::size_t most = SIZE_MAX) const;
  std::vector<HostPhase> phases(std::size_t most = SIZE_MAX) const;
  // What the gaps between committed steps were charged to.
  std::vector<IdlePart> idle_parts(std::size_t most = SIZE_MAX) const;

 private:
  struct Interval {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };
  struct InFlight {
    std::int64_t step = 0;
    std::int64_t begin_ns = 0;
  };

  void correct_offset(const StepRecord& record);
  void add_interval(std::int64_t begin_ns, std::int64_t end_ns);
  // Calls on_part for the parts of [begin_ns, end_ns), host clock, the latest one first.
  template <typename OnPart>
  void split_gap(std::int64_t begin_ns, std::int64_t end_ns, const OnPart& on_part) const;
  template <typename OnPart>
  void split_idle_phase(std::int64_t begin_ns, std::int64_t end_ns, const OnPart& on_part) const;
  DeviceTime estimate(std::int64_t now_ns) const;
  void forget(std::int64_t step);

  mutable std::mutex mutex_;  // guards everything below
  const StepBytes bytes_;
  std::int64_t offset_ns_ = 0;
  bool has_interval_ = false;
  std::int64_t busy_until_ns_ = 0;  // device clock
  DeviceTime account_;              // of everything up to busy_until_ns_
  DeviceTime account_at_restart_;
  bool restarting_ = true;  // totals begin with the next interval
  LedgerTotals totals_;     // its device times are filled in by totals()

  // What goes on now.
  std::optional<std::int64_t> idle_since_ns_;
  std::array<InFlight, kMaxDepth> in_flight_;  // the oldest first
  std::size_t num_in_flight_ = 0;
  int num_preparing_ = 0;
  std::int64_t preparing_since_ns_ = 0;

  // What device_time() has said.
  bool started_ = false;
  mutable std::int64_t reported_at_ns_ = 0;
  mutable DeviceTime reported_;

  Ring<StepRecord> records_;
  Ring<HostPhase> phases_;
  Ring<IdlePart> idle_parts_;
  Ring<Interval> preparing_;  // in order of their ends
};

}  // namespace gapless
