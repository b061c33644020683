// What the parts of a tick are made of: one step's launch and commit, and the ways in which a
// sequence ends.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/thread_priority.h"
#include "pipeline/fill_inputs.h"
#include "pipeline/loop.h"

namespace gapless {
namespace {

// A sleeping thread wakes so late, in a virtual machine too.
constexpr std::int64_t kWakingNs = 150'000;
// Not worth two turns through the scheduler.
constexpr std::int64_t kShortestNapNs = 50'000;

void add_alternatives(std::span<const TopLogprob> alternatives, CommittedToken& token) {
  token.top_logprobs.reserve(alternatives.size());
  for (TopLogprob alternative : alternatives) {
    if (alternative.token < 0) return;
    // The sampler's sum may differ in its last bits; a token has one logprob.
    if (alternative.token == token.token.value) alternative.logprob = token.logprob;
    token.top_logprobs.push_back(alternative);
  }
}

}  // namespace

void Loop::must(const Status& transition) {
  GAPLESS_CHECK_MSG(transition.ok(), transition.message());
}

// ---- launch

Status Loop::launch(SlotId slot_id) {
  const StepPlan& plan = step(slot_id).plan;
  StepSlot& slot = *slots_[index(slot_id)];
  std::array<StepMember, kMaxSeats> members;
  for (int i = 0; i < plan.num_rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    members[at] = {plan.row_ids[at], i < plan.num_host_masked};
  }
  must(state_.launch(slot_id, std::span(members).first(plan.rows().size())));

  StepShape shape;
  switch (plan.kind) {
    case StepKind::kEncode:
      shape = fill_encode(plan, seating_, model_.info().crop_bytes, slot.encode_lists());
      break;
    case StepKind::kPrefill:
      shape =
          fill_prefill(plan, model_.limits(), seating_, model_.info().image_tokens, slot.inputs());
      break;
    case StepKind::kDecode:
      shape = fill_decode(plan, model_.limits(), slot.inputs());
      break;
  }
  step(slot_id).record.num_tokens = shape.num_tokens;
  if (plan.num_host_masked > 0) return slot.launch_forward(shape);  // finalize_ready goes on
  GAPLESS_RETURN_IF_ERROR(plan.kind == StepKind::kEncode ? slot.launch_forward(shape)
                                                         : slot.launch_all(shape));
  must(state_.sampling_launched(slot_id));
  return ok_status();
}

void Loop::note_launched(SlotId slot_id) {
  const StepPlan& plan = step(slot_id).plan;
  StepRecord& record = step(slot_id).record;
  record.kind = plan.kind;
  record.slot = slot_id.value;
  record.num_rows = plan.num_rows;
  record.num_host_masked = plan.num_host_masked;
  fill_turn_.launched(plan.kind);
  const auto note_first_launch = [&](Sequence& sequence) {
    if (sequence.times.first_launched_ns == 0) {
      sequence.times.first_launched_ns = record.launch_begin_ns;
    }
  };
  if (plan.kind == StepKind::kEncode) {
    for (const PlannedImage& image : plan.images()) note_first_launch(*seating_.at(image.row));
    seating_.encode_launched(plan.images());
    seats_changed_ = true;  // fewer images wait for an encode
    return;
  }
  for (const RowId row : plan.rows()) {
    Sequence& sequence = *seating_.at(row);
    const int num_before = sequence.is_prefilled()
                               ? sequence.prompt_tokens() + sequence.num_launched - 1
                               : sequence.num_cached;
    record.num_cached_tokens += num_before;
    ++sequence.num_launched;
    if (plan.kind == StepKind::kPrefill) {
      sequence.times.prefill_launched_ns = record.launch_begin_ns;
      sequence.times.num_cached_tokens = sequence.num_cached;
      note_first_launch(sequence);
    }
  }
  if (plan.kind == StepKind::kPrefill) {
    seating_.prefill_launched(plan.rows());
    seats_changed_ = true;  // the first in line may need fewer pages now
  }
}

// ---- finalize

// Its previous token is known, and what may follow it.
bool Loop::mask_is_ready(RowId row) const {
  return state_.inflight_refs(row) == 0 && seating_.at(row)->prompt.host_constraint->is_ready();
}

// The sequences' states are those after their previous tokens (I5). A row that has ended since its
// forward was launched may sample anything: nobody reads it.
void Loop::build_masks(SlotId slot_id) {
  const StepPlan& plan = step(slot_id).plan;
  for (int i = 0; i < plan.num_host_masked; ++i) {
    const RowId row = plan.row_ids[static_cast<std::size_t>(i)];
    const std::span<std::uint32_t> mask = slots_[index(slot_id)]->mask(i);
    if (!state_.is_finalized(row)) {
      std::fill(mask.begin(), mask.end(), 0u);
      seating_.at(row)->prompt.host_constraint->allowed(mask);
      if (std::any_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word != 0; })) {
        continue;
      }
      finish_seated(row, FinishReason::kError,
                    make_error(StatusCode::kInternal, "the constraint allows no token"));
    }
    std::fill(mask.begin(), mask.end(), ~0u);
  }
}

// ---- commit

// Nothing where nobody sleeps.
SureTime::Work Loop::work_of(const Step& step) const {
  if (!options_.naps || device_.kind() == DeviceKind::kCpu) return {};
  const StepRecord& record = step.record;
  const auto num_zombies = std::ranges::count_if(
      step.plan.rows(), [this](RowId row) { return state_.is_finalized(row); });
  const int num_live = record.num_rows - static_cast<int>(num_zombies);
  SureTime::Work work{.kind = record.kind, .num_live_rows = num_live};
  switch (record.kind) {
    case StepKind::kDecode:
      work.size = 1 +  // a model may not say
                  static_cast<double>(model_.info().decode_weight_bytes) +
                  static_cast<double>(model_.info().kv_token_bytes) * record.num_cached_tokens *
                      num_live / std::max(1, record.num_rows);
      break;
    case StepKind::kPrefill:
      work.size = record.num_tokens;
      break;
    case StepKind::kEncode:
      work.num_live_rows = 1;
      for (const PlannedImage& image : step.plan.images()) work.size += image.num_crops;
      break;
  }
  return work;
}

// It began when the step before it had ended, but not before it was launched, and not after now: if clocks are wrong, a nap
// is too long by no more than the step.
void Loop::nap(const Step& step, const SureTime::Work& work) {
  const std::int64_t sure_ns = sure_time_.of(work);
  if (sure_ns == 0) return;
  const std::int64_t now_ns = clock_.now_ns();
  const std::int64_t begin_ns =
      std::min(now_ns, std::max(device_free_ns_, step.record.launch_begin_ns));
  const std::int64_t wake_ns = begin_ns + sure_ns - kWakingNs;
  if (wake_ns <= now_ns + kShortestNapNs) return;
  wake_on_time();
  clock_.sleep_until_ns(wake_ns);
}

// An error says which step it was.
Status Loop::wait_for(SlotId slot_id) {
  const StatusOr<bool> ended = slots_[index(slot_id)]->wait(options_.step_timeout_ns);
  if (ended.ok() && *ended) return ok_status();
  const StepRecord& record = step(slot_id).record;
  const std::string name = fmt::format("{} step {} of {} rows", step_kind_name(record.kind),
                                       record.number, record.num_rows);
  if (!ended.ok()) return ended.status().with_context(name);
  return make_error(StatusCode::kDeviceError, "{} did not end within {} s", name,
                    static_cast<double>(options_.step_timeout_ns) / 1e9);
}

void Loop::commit_outputs(SlotId slot_id) {
  const StepPlan& plan = step(slot_id).plan;
  StepRecord& record = step(slot_id).record;
  const StepSlot& slot = *slots_[index(slot_id)];
  record.forward_begin_ns = slot.stamp_ns(kForwardBegin);
  record.forward_end_ns = slot.stamp_ns(kForwardEnd);
  record.sampling_begin_ns = slot.stamp_ns(kSamplingBegin);
  record.sampling_end_ns = slot.stamp_ns(kSamplingEnd);
  if (plan.kind == StepKind::kPrefill) {
    for (const RowId row : plan.rows()) seating_.drop_images(row);
    seats_changed_ = true;  // the first in line may have waited for an image's place
  }
  for (int i = 0; i < plan.num_rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const RowId row = plan.row_ids[at];
    if (state_.is_finalized(row)) {
      ++record.num_zombies;
    } else if (plan.kind != StepKind::kEncode) {
      commit_row(*seating_.at(row), slot, i);
      if (state_.is_finalized(row)) ++step(slot_id).num_ended;
    }
  }
}

void Loop::commit_row(Sequence& sequence, const StepSlot& slot, int i) {
  const StepOutput& output = slot.outputs()[static_cast<std::size_t>(i)];
  const RowId row = sequence.row;
  // A stop id is a token too: an answer without any took until here.
  if (sequence.num_sampled++ == 0) sequence.times.first_token_ns = clock_.now_ns();
  switch (output.outcome) {
    case StepOutcome::kContinues:
    case StepOutcome::kLength: {
      CommittedToken token{TokenId(output.token), output.x,          output.y,
                           output.logprob,        output.confidence, {}};
      if (sequence.asks_top_logprobs()) {
        add_alternatives(slot.top_logprobs(i).first(static_cast<std::size_t>(
                             sequence.prompt.row.sampling.num_top_logprobs)),
                         token);
      }
      sequence.sink->on_token(token);
      if (output.outcome == StepOutcome::kLength) {
        finish_seated(row, FinishReason::kLength, ok_status());
      } else if (sequence.prompt.host_constraint) {
        sequence.prompt.host_constraint->advance(token.token);
      }
      return;
    }
    case StepOutcome::kStopped:
      return finish_seated(row, FinishReason::kStop, ok_status());
    case StepOutcome::kAlreadyDone:
      break;
  }
  finish_seated(row, FinishReason::kError,
                make_error(StatusCode::kInternal,
                           "the device reports outcome {} for a row that "
                           "the host believes is running",
                           static_cast<int>(output.outcome)));
}

// ---- ends

void Loop::finish(Sequence& sequence, FinishReason reason, const Status& status) {
  sequence.times.finished_ns = clock_.now_ns();
  sequence.sink->on_finished(reason, status, sequence.times);
}

void Loop::finish_seated(RowId row, FinishReason reason, const Status& status) {
  must(state_.finalize_sequence(row));
  seats_changed_ = true;  // its seat is free; row and pages may come later
  finish(*seating_.at(row), reason, status);
}

// I6: finalized early, released late.
void Loop::release_if_done(RowId row) {
  if (!state_.is_seated(row) || !state_.is_finalized(row) || state_.inflight_refs(row) > 0) return;
  must(state_.release(row));
  seating_.vacate(row);
  seats_changed_ = true;
}

void Loop::cancel_one(SequenceId id) {
  const Status status(StatusCode::kCancelled, "cancelled");
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                    [id](const auto& sequence) { return sequence->id == id; });
  if (waiting != waiting_.end()) {
    const std::unique_ptr<Sequence> sequence = std::move(*waiting);
    waiting_.erase(waiting);
    seats_changed_ = true;
    num_waiting_.fetch_sub(1);  // whoever learns that it has ended may ask again at once
    finish(*sequence, FinishReason::kCancelled, status);
    return;
  }
  for (const RowId row : seating_.order()) {
    if (state_.sequence(row) != id) continue;
    if (!state_.is_finalized(row)) finish_seated(row, FinishReason::kCancelled, status);
    return release_if_done(row);
  }
}

void Loop::cancel_all() {
  while (!waiting_.empty()) cancel_one(waiting_.back()->id);
  for (int i = 0; i < model_.limits().num_rows(); ++i) {
    const RowId row(i);
    if (state_.is_seated(row) && !state_.is_finalized(row)) cancel_one(state_.sequence(row));
  }
}

// The step is taken back, and its sequences with it: part of its work may have been enqueued, so
// what the device holds of them is not known.
void Loop::fail_launch(SlotId slot_id, const Status& status) {
  const StepPlan plan = step(slot_id).plan;
  must(state_.abandon(slot_id));
  if (plan.kind == StepKind::kEncode) seating_.encode_failed();
  ledger_.abandoned(step(slot_id).record.number);
  const Status reason =
      status.with_context(fmt::format("launching a {} step", step_kind_name(plan.kind)));
  // What was enqueued must not meet the slot's next step.
  if (const Status drained = streams_.drain(options_.step_timeout_ns); !drained.ok()) {
    return lose_device(
        make_error(drained.code(), "{}; then {}", reason.message(), drained.message()));
  }
  for (const RowId row : plan.rows()) {
    if (!state_.is_finalized(row)) finish_seated(row, FinishReason::kError, reason);
    release_if_done(row);
  }
}

void Loop::lose_device(const Status& status) {
  lost_ = status.with_context("the device is lost");
  {
    MutexLock lock(shared_mutex_);
    shared_lost_ = lost_;
  }
  if (options_.on_device_lost) options_.on_device_lost(lost_);
  const auto abandon = [this](SlotId slot) {
    must(state_.abandon(slot));
    ledger_.abandoned(step(slot).record.number);
  };
  while (const auto slot = state_.newest()) abandon(*slot);
  if (const auto slot = state_.committing()) abandon(*slot);
  while (!seating_.is_empty()) {
    const RowId row = seating_.order().front();
    kept_.push_back(std::move(seating_.at(row)->prompt.device_grammar));
    if (!state_.is_finalized(row)) finish_seated(row, FinishReason::kError, lost_);
    release_if_done(row);
  }
  for (auto& sequence : waiting_) {
    num_waiting_.fetch_sub(1);
    finish(*sequence, FinishReason::kError, lost_);
  }
  waiting_.clear();
  seating_.clear_caches();
}

// ---- accounts

void Loop::remember(const Step& step) {
  const StepRecord& record = step.record;
  if (record.kind != StepKind::kDecode) return;
  run_ahead_.committed({.num_rows = record.num_rows - record.num_zombies,
                        .num_ended = step.num_ended,
                        .step_ns = record.sampling_end_ns - record.forward_begin_ns,
                        .host_ns = record.launch_end_ns - record.plan_begin_ns +
                                   record.finalize_end_ns - record.finalize_begin_ns +
                                   record.commit_end_ns - record.wait_end_ns});
}

void Loop::publish_counts() {
  MutexLock lock(shared_mutex_);
  counts_.waiting = static_cast<int>(waiting_.size());
  counts_.running = state_.num_seated();
  counts_.steps_in_flight = state_.num_in_flight();
  counts_.seats = seating_.counts();
}

void Loop::add_phase(HostPhaseKind kind, SlotId slot_id, std::int64_t begin_ns,
                     std::int64_t end_ns) {
  ledger_.add_phase(kind, step(slot_id).record.number, begin_ns, end_ns);
}

}  // namespace gapless
