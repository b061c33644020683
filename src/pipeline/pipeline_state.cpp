#include "pipeline/pipeline_state.h"

#include <algorithm>
#include <bitset>

#include "base/check.h"

namespace gapless {
namespace {

std::string_view phase_name(SlotPhase phase) {
  switch (phase) {
    case SlotPhase::kFree:
      return "free";
    case SlotPhase::kAwaitingFinalize:
      return "awaiting finalize";
    case SlotPhase::kLaunched:
      return "launched";
    case SlotPhase::kCommitting:
      return "committing";
  }
  return "unknown";
}

}  // namespace

PipelineState::PipelineState(int depth, int max_seats) : depth_(depth), max_seats_(max_seats) {
  GAPLESS_CHECK_MSG(depth >= 1 && depth <= kMaxDepth, "depth out of range");
  GAPLESS_CHECK_MSG(max_seats >= 1 && max_seats <= kMaxSeats, "max_seats out of range");
  rows_.resize(static_cast<std::size_t>(max_seats * kRowsPerSeat));
}

// ---- sequences

Status PipelineState::seat(RowId row, SequenceId sequence) {
  Row& seat = rows_[index(row)];
  if (!sequence.valid()) return illegal("seat", row, "the sequence has no id");
  if (seat.sequence.valid()) return illegal("seat", row, "the row is taken");
  if (!has_free_seat()) return illegal("seat", row, "all seats are taken");
  seat = Row{sequence, false, 0};
  ++num_seated_;
  return ok_status();
}

Status PipelineState::finalize_sequence(RowId row) {
  Row& seat = rows_[index(row)];
  if (!seat.sequence.valid()) return illegal("finalize_sequence", row, "the row is vacant");
  if (seat.finalized) return illegal("finalize_sequence", row, "it is finalized already (I6)");
  seat.finalized = true;
  --num_seated_;
  return ok_status();
}

Status PipelineState::release(RowId row) {
  Row& seat = rows_[index(row)];
  if (!seat.sequence.valid()) return illegal("release", row, "the row is vacant");
  if (!seat.finalized) return illegal("release", row, "it is not finalized (I6)");
  if (seat.inflight_refs != 0) return illegal("release", row, "steps in flight refer to it (I6)");
  seat = Row{};
  return ok_status();
}

// ---- steps

Status PipelineState::launch(SlotId slot_id, std::span<const StepMember> members) {
  Slot& slot = slots_[index(slot_id)];
  if (slot.phase != SlotPhase::kFree) return illegal("launch", slot_id, "the slot is in use (I4)");
  if (awaiting_finalize()) {
    return illegal("launch", slot_id, "the newest step awaits its sampling (I1)");
  }
  if (members.empty()) return illegal("launch", slot_id, "a step without members");
  if (members.size() > static_cast<std::size_t>(max_seats_)) {
    return illegal("launch", slot_id, "more members than seats");
  }
  std::bitset<kMaxRows> seen;
  for (const StepMember& member : members) {
    const std::size_t row = index(member.row);
    if (!rows_[row].sequence.valid()) {
      return illegal("launch", slot_id, member.row, "the row is vacant");
    }
    if (rows_[row].finalized) {
      return illegal("launch", slot_id, member.row, "the sequence is finalized (I6)");
    }
    if (seen[row]) return illegal("launch", slot_id, member.row, "the row is listed twice");
    if (rows_[row].inflight_refs >= depth_) {
      return illegal("launch", slot_id, member.row, "more references than the depth (I3)");
    }
    seen.set(row);
  }
  slot.phase = SlotPhase::kAwaitingFinalize;
  slot.launch_number = num_launches_++;
  slot.num_members = static_cast<int>(members.size());
  std::copy(members.begin(), members.end(), slot.members.begin());
  for (const StepMember& member : members) ++rows_[index(member.row)].inflight_refs;
  queue_[static_cast<std::size_t>(num_queued_++)] = slot_id;
  return ok_status();
}

Status PipelineState::sampling_launched(SlotId slot_id) {
  Slot& slot = slots_[index(slot_id)];
  if (slot.phase != SlotPhase::kAwaitingFinalize) {
    return illegal("sampling_launched", slot_id, "the step does not await its sampling");
  }
  for (const StepMember& member : members(slot_id)) {
    if (member.host_masked && inflight_refs(member.row) > 1) {
      return illegal("sampling_launched", slot_id, member.row,
                     "its previous token is not committed (I5)");
    }
  }
  slot.phase = SlotPhase::kLaunched;
  return ok_status();
}

Status PipelineState::begin_commit(SlotId slot_id) {
  Slot& slot = slots_[index(slot_id)];
  if (const auto other = committing()) {
    return illegal("begin_commit", slot_id, "another slot is being committed (I2)");
  }
  if (slot.phase != SlotPhase::kLaunched) {
    return illegal("begin_commit", slot_id, "its sampling is not launched");
  }
  if (oldest() != slot_id) return illegal("begin_commit", slot_id, "it is not the oldest (I2)");
  slot.phase = SlotPhase::kCommitting;
  std::copy(queue_.begin() + 1, queue_.begin() + num_queued_, queue_.begin());
  --num_queued_;
  return ok_status();
}

Status PipelineState::end_commit(SlotId slot_id) {
  Slot& slot = slots_[index(slot_id)];
  if (slot.phase != SlotPhase::kCommitting) {
    return illegal("end_commit", slot_id, "it is not being committed");
  }
  drop_members(slot);
  return ok_status();
}

Status PipelineState::abandon(SlotId slot_id) {
  Slot& slot = slots_[index(slot_id)];
  if (slot.phase == SlotPhase::kFree) return illegal("abandon", slot_id, "the slot is free");
  if (num_queued_ > 0) {
    if (newest() != slot_id) return illegal("abandon", slot_id, "it is not the newest (I2)");
    --num_queued_;
  }
  drop_members(slot);
  return ok_status();
}

void PipelineState::drop_members(Slot& slot) {
  for (int i = 0; i < slot.num_members; ++i) {
    --rows_[index(slot.members[static_cast<std::size_t>(i)].row)].inflight_refs;
  }
  slot.num_members = 0;
  slot.phase = SlotPhase::kFree;
}

// ---- questions

std::span<const StepMember> PipelineState::members(SlotId slot_id) const {
  const Slot& slot = slots_[index(slot_id)];
  return std::span(slot.members).first(static_cast<std::size_t>(slot.num_members));
}

bool PipelineState::is_empty() const {
  return num_queued_ == 0 && !committing().has_value();
}

std::optional<SlotId> PipelineState::free_slot() const {
  for (int i = 0; i < depth_; ++i) {
    if (phase(SlotId(i)) == SlotPhase::kFree) return SlotId(i);
  }
  return std::nullopt;
}

std::optional<SlotId> PipelineState::oldest() const {
  if (num_queued_ == 0) return std::nullopt;
  return queue_.front();
}

std::optional<SlotId> PipelineState::newest() const {
  if (num_queued_ == 0) return std::nullopt;
  return queue_[static_cast<std::size_t>(num_queued_ - 1)];
}

std::optional<SlotId> PipelineState::committing() const {
  for (int i = 0; i < depth_; ++i) {
    if (phase(SlotId(i)) == SlotPhase::kCommitting) return SlotId(i);
  }
  return std::nullopt;
}

std::optional<SlotId> PipelineState::awaiting_finalize() const {
  // I1: only the newest step can.
  const auto last = newest();
  if (!last || phase(*last) != SlotPhase::kAwaitingFinalize) return std::nullopt;
  return last;
}

bool PipelineState::can_finalize(SlotId slot_id) const {
  if (phase(slot_id) != SlotPhase::kAwaitingFinalize) return false;
  const auto list = members(slot_id);
  return std::none_of(list.begin(), list.end(), [&](const StepMember& member) {
    return member.host_masked && inflight_refs(member.row) > 1;
  });
}

Status PipelineState::check() const {
  std::bitset<kMaxDepth> queued;
  std::int64_t previous = -1;
  for (int i = 0; i < num_queued_; ++i) {
    const SlotId slot_id = queue_[static_cast<std::size_t>(i)];
    const Slot& slot = slots_[index(slot_id)];
    if (queued[index(slot_id)]) return illegal("check", slot_id, "it is queued twice (I4)");
    queued.set(index(slot_id));
    if (slot.launch_number <= previous) {
      return illegal("check", slot_id, "the queue is not in launch order (I2)");
    }
    previous = slot.launch_number;
    if (slot.phase != SlotPhase::kLaunched && slot.phase != SlotPhase::kAwaitingFinalize) {
      return illegal("check", slot_id, "a step in flight whose slot says otherwise (I4)");
    }
    if (slot.phase == SlotPhase::kAwaitingFinalize && i + 1 != num_queued_) {
      return illegal("check", slot_id, "a newer step was launched before its sampling (I1)");
    }
  }
  std::vector<int> refs(rows_.size(), 0);
  for (int i = 0; i < depth_; ++i) {
    const SlotId slot_id(i);
    const bool in_flight =
        phase(slot_id) == SlotPhase::kLaunched || phase(slot_id) == SlotPhase::kAwaitingFinalize;
    if (in_flight != queued[index(slot_id)]) {
      return illegal("check", slot_id, "a step that no queue knows (I4)");
    }
    for (const StepMember& member : members(slot_id)) ++refs[index(member.row)];
  }
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const RowId row(static_cast<std::int32_t>(i));
    if (refs[i] != rows_[i].inflight_refs || refs[i] > depth_) {
      return illegal("check", row, "inflight_refs is not the number of its steps (I3)");
    }
    if (refs[i] > 0 && !rows_[i].sequence.valid()) {
      return illegal("check", row, "released while steps refer to it (I6)");
    }
  }
  const auto has_seat = [](const Row& row) { return row.sequence.valid() && !row.finalized; };
  const auto num_seated = std::count_if(rows_.begin(), rows_.end(), has_seat);
  if (num_seated_ != num_seated || num_seated > max_seats_) {
    return make_error(StatusCode::kInternal,
                      "pipeline: check: {} seats of {} are taken, by {} sequences", num_seated_,
                      max_seats_, num_seated);
  }
  return ok_status();
}

// ---- errors

std::size_t PipelineState::index(SlotId slot) const {
  GAPLESS_CHECK_MSG(slot.value >= 0 && slot.value < depth_, "no such slot");
  return static_cast<std::size_t>(slot.value);
}

std::size_t PipelineState::index(RowId row) const {
  GAPLESS_CHECK_MSG(row.value >= 0 && row.value < static_cast<int>(rows_.size()), "no such row");
  return static_cast<std::size_t>(row.value);
}

Status PipelineState::illegal(std::string_view transition, SlotId slot,
                              std::string_view why) const {
  return make_error(StatusCode::kInternal, "pipeline: {}: slot {} ({}): {}", transition, slot.value,
                    phase_name(phase(slot)), why);
}

Status PipelineState::illegal(std::string_view transition, SlotId slot, RowId row,
                              std::string_view why) const {
  return make_error(StatusCode::kInternal, "pipeline: {}: slot {} ({}), row {}, sequence {}: {}",
                    transition, slot.value, phase_name(phase(slot)), row.value, sequence(row).value,
                    why);
}

Status PipelineState::illegal(std::string_view transition, RowId row, std::string_view why) const {
  return make_error(StatusCode::kInternal, "pipeline: {}: row {}, sequence {} ({} in flight): {}",
                    transition, row.value, sequence(row).value, inflight_refs(row), why);
}

}  // namespace gapless
