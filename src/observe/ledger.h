// The bubble ledger: where the device's time went, and which host phase let it idle.
//
// Every committed step adds one record. Device intervals (forward, sampling) are merged into a
// union:
//   busy      inside some interval
//   idle      between two, split by what the host was doing meanwhile:
//     starved   nothing was queued (HostPhaseKind::kIdle)
//     bubble    work was queued; charged to the host phases that overlap the gap, and to kOther
//               where none does
// busy + starved + bubble = the time from the first interval's begin to the last one's end.
//
// Zombie share = rows of decode steps that were finalized before the step was committed, over all
// rows of decode steps.
//
// The device's clock is brought to the host's by an offset measured at the start. Clocks drift, so
// the ledger corrects it by causality: a forward cannot begin before its launch, and a sampling
// cannot end after its outputs were read. Busy and idle totals come from the device's clock alone.
//
// Threads: add and add_phase from the engine thread; the rest from any. No allocation
// after the constructor but in records() and phases().
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

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
  std::int64_t starved_ns = 0;
  std::int64_t bubble_ns = 0;
  std::array<std::int64_t, kNumHostPhaseKinds> bubble_by_phase_ns{};
  std::array<std::int64_t, kNumHostPhaseKinds> host_ns{};  // host time by phase

  std::int64_t steps() const { return num_steps[0] + num_steps[1] + num_steps[2]; }
  std::int64_t elapsed_ns() const { return busy_ns + starved_ns + bubble_ns; }
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
  // Keeps the last `capacity` records, and phases for as many steps.
  explicit Ledger(std::size_t capacity, StepBytes bytes = {});

  // host time = device time + offset.
  void set_clock_offset_ns(std::int64_t offset_ns);

  void add_phase(HostPhaseKind kind, std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns);
  // Device times in `record` are the device's own; steps come in launch order.
  void add(StepRecord record);

  // Zeroes the totals, as at the end of a warm-up: the gap before the next step is not counted.
  void restart();

  LedgerTotals totals() const;
  // The last `most` of them, oldest first. Whoever asks holds up the engine thread while they are
  // copied: a few microseconds for a hundred.
  std::vector<StepRecord> records(std::size_t most = SIZE_MAX) const;
  std::vector<HostPhase> phases(std::size_t most = SIZE_MAX) const;

 private:
  void correct_offset(const StepRecord& record);
  void add_interval(std::int64_t begin_ns, std::int64_t end_ns);
  void charge_gap(std::int64_t begin_ns, std::int64_t end_ns);

  mutable std::mutex mutex_;  // guards everything below
  const StepBytes bytes_;
  std::int64_t offset_ns_ = 0;
  bool has_interval_ = false;
  std::int64_t busy_until_ns_ = 0;  // device clock
  LedgerTotals totals_;
  std::vector<StepRecord> records_;  // a ring
  std::size_t num_records_ = 0;      // ever added
  std::vector<HostPhase> phases_;    // a ring
  std::size_t num_phases_ = 0;       // ever added
};

}  // namespace gapless
