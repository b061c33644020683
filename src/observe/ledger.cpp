#include "observe/ledger.h"

#include <algorithm>

#include "base/check.h"

namespace gapless {
namespace {

template <typename T>
std::vector<T> unroll(const std::vector<T>& ring, std::size_t num_added, std::size_t most) {
  const std::size_t count = std::min({num_added, ring.size(), most});
  std::vector<T> items;
  items.reserve(count);
  for (std::size_t i = num_added - count; i < num_added; ++i)
    items.push_back(ring[i % ring.size()]);
  return items;
}

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
    : bytes_(bytes), records_(capacity), phases_(capacity * kPhasesPerStep) {
  GAPLESS_CHECK(capacity > 0);
}

void Ledger::set_clock_offset_ns(std::int64_t offset_ns) {
  std::lock_guard lock(mutex_);
  offset_ns_ = offset_ns;
}

void Ledger::add_phase(HostPhaseKind kind, std::int64_t step, std::int64_t begin_ns,
                       std::int64_t end_ns) {
  std::lock_guard lock(mutex_);
  phases_[num_phases_++ % phases_.size()] = {kind, step, begin_ns, end_ns};
  totals_.host_ns[static_cast<std::size_t>(kind)] += end_ns - begin_ns;
}

void Ledger::add(StepRecord record) {
  std::lock_guard lock(mutex_);
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
  records_[num_records_++ % records_.size()] = record;
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
    charge_gap(busy_until_ns_, begin_ns);
    busy_until_ns_ = begin_ns;
  }
  if (end_ns > busy_until_ns_) {
    totals_.busy_ns += end_ns - busy_until_ns_;
    busy_until_ns_ = end_ns;
  }
}

void Ledger::charge_gap(std::int64_t begin_ns, std::int64_t end_ns) {
  const std::int64_t gap_ns = end_ns - begin_ns;
  std::int64_t uncharged_ns = gap_ns;
  std::int64_t starved_ns = 0;
  const std::int64_t host_begin_ns = begin_ns + offset_ns_;
  const std::int64_t host_end_ns = end_ns + offset_ns_;
  const std::size_t oldest = num_phases_ - std::min(num_phases_, phases_.size());
  for (std::size_t i = num_phases_; i > oldest && uncharged_ns > 0; --i) {
    const HostPhase& phase = phases_[(i - 1) % phases_.size()];
    if (phase.end_ns <= host_begin_ns) break;  // phases follow one another
    const std::int64_t overlap_ns =
        std::min(std::min(phase.end_ns, host_end_ns) - std::max(phase.begin_ns, host_begin_ns),
                 uncharged_ns);
    if (overlap_ns <= 0) continue;
    uncharged_ns -= overlap_ns;
    if (phase.kind == HostPhaseKind::kIdle) {
      starved_ns += overlap_ns;
    } else {
      totals_.bubble_by_phase_ns[static_cast<std::size_t>(phase.kind)] += overlap_ns;
    }
  }
  totals_.bubble_by_phase_ns[static_cast<std::size_t>(HostPhaseKind::kOther)] += uncharged_ns;
  totals_.starved_ns += starved_ns;
  totals_.bubble_ns += gap_ns - starved_ns;
}

void Ledger::restart() {
  std::lock_guard lock(mutex_);
  totals_ = LedgerTotals();
  has_interval_ = false;
}

LedgerTotals Ledger::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

std::vector<StepRecord> Ledger::records(std::size_t most) const {
  std::lock_guard lock(mutex_);
  return unroll(records_, num_records_, most);
}

std::vector<HostPhase> Ledger::phases(std::size_t most) const {
  std::lock_guard lock(mutex_);
  return unroll(phases_, num_phases_, most);
}

}  // namespace gapless
