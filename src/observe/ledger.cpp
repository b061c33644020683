#include "observe/ledger.h"

#include <algorithm>

#include "base/check.h"

namespace gapless {
namespace {

// Preparations that ended since the last step: what matters between two steps. More than fit are
// there only when hundreds of requests fail before they reach the loop.
constexpr std::size_t kKeptPreparations = 1024;

}  // namespace

const char* step_kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::kEncode:
      return "encode";
    case StepKind::kPrefill:
      return "prefill";
    case StepKind::kDecode:
      return "decode";
  }
  return "step";
}

const char* host_phase_name(HostPhaseKind kind) {
  switch (kind) {
    case HostPhaseKind::kPlan:
      return "plan";
    case HostPhaseKind::kLaunch:
      return "launch";
    case HostPhaseKind::kWait:
      return "wait";
    case HostPhaseKind::kCommit:
      return "commit";
    case HostPhaseKind::kFinalize:
      return "finalize";
    case HostPhaseKind::kIdle:
      return "idle";
    case HostPhaseKind::kOther:
      return "other";
  }
  return "unknown";
}

std::int64_t LedgerTotals::host_work_ns() const {
  std::int64_t sum = 0;
  for (const HostPhaseKind kind : {HostPhaseKind::kPlan, HostPhaseKind::kLaunch,
                                   HostPhaseKind::kCommit, HostPhaseKind::kFinalize}) {
    sum += host_ns[static_cast<std::size_t>(kind)];
  }
  return sum;
}

Ledger::Ledger(std::size_t capacity, StepBytes bytes)
    : bytes_(bytes),
      records_(capacity),
      phases_(capacity * kPhasesPerStep),
      idle_parts_(capacity * kPhasesPerStep),
      preparing_(kKeptPreparations) {}

void Ledger::set_clock_offset_ns(std::int64_t offset_ns) {
  std::lock_guard lock(mutex_);
  offset_ns_ = offset_ns;
}

void Ledger::start(std::int64_t now_ns) {
  std::lock_guard lock(mutex_);
  has_interval_ = true;
  busy_until_ns_ = now_ns - offset_ns_;
  started_ = true;
  reported_at_ns_ = now_ns;
}

void Ledger::add_phase(HostPhaseKind kind, std::int64_t step, std::int64_t begin_ns,
                       std::int64_t end_ns) {
  std::lock_guard lock(mutex_);
  if (kind == HostPhaseKind::kIdle) idle_since_ns_.reset();
  phases_.add({kind, step, begin_ns, end_ns});
  totals_.host_ns[static_cast<std::size_t>(kind)] += end_ns - begin_ns;
}

void Ledger::idle_since(std::int64_t since_ns) {
  std::lock_guard lock(mutex_);
  idle_since_ns_ = since_ns;
}

void Ledger::launched(std::int64_t step, std::int64_t begin_ns) {
  std::lock_guard lock(mutex_);
  GAPLESS_CHECK(num_in_flight_ < in_flight_.size());
  in_flight_[num_in_flight_++] = {step, begin_ns};
}

void Ledger::abandoned(std::int64_t step) {
  std::lock_guard lock(mutex_);
  forget(step);
}

void Ledger::forget(std::int64_t step) {
  const auto end = in_flight_.begin() + static_cast<std::ptrdiff_t>(num_in_flight_);
  const auto kept = std::remove_if(in_flight_.begin(), end,
                                   [&](const InFlight& one) { return one.step == step; });
  num_in_flight_ = static_cast<std::size_t>(kept - in_flight_.begin());
}

void Ledger::begin_preparing(std::int64_t since_ns) {
  std::lock_guard lock(mutex_);
  preparing_since_ns_ = num_preparing_ == 0 ? since_ns : std::min(preparing_since_ns_, since_ns);
  ++num_preparing_;
}

void Ledger::end_preparing(std::int64_t now_ns) {
  std::lock_guard lock(mutex_);
  GAPLESS_CHECK(num_preparing_ > 0);
  if (--num_preparing_ == 0 && now_ns > preparing_since_ns_) {
    preparing_.add({preparing_since_ns_, now_ns});
  }
}

std::int64_t Ledger::add(StepRecord record) {
  std::lock_guard lock(mutex_);
  forget(record.number);
  correct_offset(record);
  add_interval(record.forward_begin_ns, record.forward_end_ns);
  add_interval(record.sampling_begin_ns, record.sampling_end_ns);

  const auto kind = static_cast<std::size_t>(record.kind);
  ++totals_.num_steps[kind];
  totals_.forward_ns[kind] += record.forward_end_ns - record.forward_begin_ns;
  totals_.sampling_ns[kind] += record.sampling_end_ns - record.sampling_begin_ns;
  if (record.kind == StepKind::kDecode) {
    totals_.num_decode_rows += record.num_rows;
    totals_.num_zombie_rows += record.num_zombies;
    totals_.decode_bytes += bytes_.weight_bytes + bytes_.kv_token_bytes * record.num_cached_tokens;
  }

  record.forward_begin_ns += offset_ns_;
  record.forward_end_ns += offset_ns_;
  record.sampling_begin_ns += offset_ns_;
  record.sampling_end_ns += offset_ns_;
  records_.add(record);
  return record.sampling_end_ns;
}

void Ledger::correct_offset(const StepRecord& record) {
  offset_ns_ = std::max(offset_ns_, record.launch_begin_ns - record.forward_begin_ns);
  offset_ns_ = std::min(offset_ns_, record.wait_end_ns - record.sampling_end_ns);
}

void Ledger::add_interval(std::int64_t begin_ns, std::int64_t end_ns) {
  if (!has_interval_) {
    has_interval_ = true;
    busy_until_ns_ = begin_ns;
  }
  if (begin_ns > busy_until_ns_) {
    split_gap(busy_until_ns_ + offset_ns_, begin_ns + offset_ns_, [this](const IdlePart& part) {
      account_.add(part);
      idle_parts_.add(part);
    });
    busy_until_ns_ = begin_ns;
  }
  if (restarting_) account_at_restart_ = account_;
  restarting_ = false;
  if (end_ns > busy_until_ns_) {
    account_.add_busy(end_ns - busy_until_ns_);
    busy_until_ns_ = end_ns;
  }
}

template <typename OnPart>
void Ledger::split_gap(std::int64_t begin_ns, std::int64_t end_ns, const OnPart& on_part) const {
  std::int64_t left_ns = end_ns;  // what is to be charged still ends here
  const auto charge_phase = [&](const HostPhase& phase) {
    const std::int64_t from_ns = std::max(phase.begin_ns, begin_ns);
    const std::int64_t to_ns = std::min(phase.end_ns, left_ns);
    if (to_ns <= from_ns) return;
    if (to_ns < left_ns) on_part({DeviceActivity::kBubble, HostPhaseKind::kOther, to_ns, left_ns});
    if (phase.kind == HostPhaseKind::kIdle) {
      split_idle_phase(from_ns, to_ns, on_part);
    } else {
      on_part({DeviceActivity::kBubble, phase.kind, from_ns, to_ns});
    }
    left_ns = from_ns;
  };
  if (idle_since_ns_) charge_phase({HostPhaseKind::kIdle, -1, *idle_since_ns_, end_ns});
  // Phases follow one another.
  for (std::size_t i = 0; i < phases_.size() && left_ns > begin_ns; ++i) {
    if (phases_.newest(i).end_ns <= begin_ns) break;
    charge_phase(phases_.newest(i));
  }
  if (left_ns > begin_ns)
    on_part({DeviceActivity::kBubble, HostPhaseKind::kOther, begin_ns, left_ns});
}

template <typename OnPart>
void Ledger::split_idle_phase(std::int64_t begin_ns, std::int64_t end_ns,
                              const OnPart& on_part) const {
  std::int64_t left_ns = end_ns;
  const auto charge_preparing = [&](const Interval& interval) {
    const std::int64_t from_ns = std::max(interval.begin_ns, begin_ns);
    const std::int64_t to_ns = std::min(interval.end_ns, left_ns);
    if (to_ns <= from_ns) return;
    if (to_ns < left_ns) on_part({DeviceActivity::kStarved, HostPhaseKind::kIdle, to_ns, left_ns});
    on_part({DeviceActivity::kPreparing, HostPhaseKind::kIdle, from_ns, to_ns});
    left_ns = from_ns;
  };
  if (num_preparing_ > 0) charge_preparing({preparing_since_ns_, end_ns});
  for (std::size_t i = 0; i < preparing_.size() && left_ns > begin_ns; ++i) {
    if (preparing_.newest(i).end_ns <= begin_ns) break;
    charge_preparing(preparing_.newest(i));
  }
  if (left_ns > begin_ns)
    on_part({DeviceActivity::kStarved, HostPhaseKind::kIdle, begin_ns, left_ns});
}

void Ledger::restart() {
  std::lock_guard lock(mutex_);
  totals_ = LedgerTotals();
  restarting_ = true;
}

LedgerTotals Ledger::totals() const {
  std::lock_guard lock(mutex_);
  LedgerTotals totals = totals_;
  if (restarting_) return totals;
  const DeviceTime time = account_ - account_at_restart_;
  totals.busy_ns = time.busy_ns();
  totals.preparing_ns = time.preparing_ns();
  totals.starved_ns = time.starved_ns();
  totals.bubble_ns = time.bubble_ns();
  for (std::size_t i = 0; i < totals.bubble_by_phase_ns.size(); ++i) {
    totals.bubble_by_phase_ns[i] = time.bubble_ns(static_cast<HostPhaseKind>(i));
  }
  return totals;
}

// The account, and behind it: the pause until the oldest step in flight was launched, and that
// step.
DeviceTime Ledger::estimate(std::int64_t now_ns) const {
  DeviceTime time = account_;
  const std::int64_t until_ns = busy_until_ns_ + offset_ns_;
  if (until_ns >= now_ns) return time;
  const std::int64_t busy_from_ns =
      num_in_flight_ == 0 ? now_ns : std::clamp(in_flight_[0].begin_ns, until_ns, now_ns);
  split_gap(until_ns, busy_from_ns, [&time](const IdlePart& part) { time.add(part); });
  time.add_busy(now_ns - busy_from_ns);
  return time;
}

DeviceTime Ledger::device_time(std::int64_t now_ns) const {
  std::lock_guard lock(mutex_);
  const std::int64_t elapsed_ns = now_ns - reported_at_ns_;
  if (started_ && elapsed_ns > 0 && reported_.advance_towards(estimate(now_ns), elapsed_ns)) {
    reported_at_ns_ = now_ns;
  }
  return reported_;
}

std::vector<StepRecord> Ledger::records(std::size_t most) const {
  std::lock_guard lock(mutex_);
  return records_.last(most);
}

std::vector<HostPhase> Ledger::phases(std::size_t most) const {
  std::lock_guard lock(mutex_);
  return phases_.last(most);
}

std::vector<IdlePart> Ledger::idle_parts(std::size_t most) const {
  std::vector<IdlePart> parts;
  {
    std::lock_guard lock(mutex_);
    parts = idle_parts_.last(most);
  }
  std::sort(parts.begin(), parts.end(),
            [](const IdlePart& a, const IdlePart& b) { return a.begin_ns < b.begin_ns; });
  return parts;
}

}  // namespace gapless
