#include "pipeline/loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace gapless {
namespace {

// A picture takes some milliseconds to be decoded and cut.
constexpr std::int64_t kMostAwakeNs = 20'000'000;

}  // namespace

StatusOr<std::unique_ptr<Loop>> Loop::create(Device& device, StepModel& model, HostClock& clock,
                                             const LoopOptions& options) {
  if (options.depth < 1 || options.depth > kMaxDepth) {
    return invalid_argument("depth {}: allowed are 1 to {}", options.depth, kMaxDepth);
  }
  const StepLimits& limits = model.limits();
  if (limits.max_seats < 1 || limits.max_seats > kMaxSeats) {
    return invalid_argument("max_seats {}: allowed are 1 to {}", limits.max_seats, kMaxSeats);
  }
  if (limits.num_pages < 2) return invalid_argument("num_pages {}: too few", limits.num_pages);
  std::unique_ptr<Loop> loop(new Loop(device, model, clock, options));
  GAPLESS_RETURN_IF_ERROR(loop->check_limits());
  GAPLESS_RETURN_IF_ERROR(loop->allocate());
  return loop;
}

Loop::Loop(Device& device, StepModel& model, HostClock& clock, const LoopOptions& options)
    : device_(device),
      model_(model),
      clock_(clock),
      options_(options),
      state_(options.depth, model.limits().max_seats),
      seating_(model.info(), model.limits(), options.max_cached_prefixes, options.foresees_limits),
      ledger_(options.ledger_capacity, {.weight_bytes = model.info().decode_weight_bytes,
                                        .kv_token_bytes = model.info().kv_token_bytes}),
      // The CPU device needs every core for the model.
      mailbox_(device.kind() == DeviceKind::kCuda ? kMostAwakeNs : 0),
      active_depth_(options.depth) {}

// Bounds without which a request that fits alone could never run.
Status Loop::check_limits() const {
  const StepLimits& limits = model_.limits();
  if (limits.max_prefill_sequences < 1 || limits.max_prefill_sequences > kMaxSeats) {
    return invalid_argument("max_prefill_sequences {}: allowed are 1 to {}",
                            limits.max_prefill_sequences, kMaxSeats);
  }
  if (limits.max_crops_per_encode < 1) {
    return invalid_argument("max_crops_per_encode {}: at least 1", limits.max_crops_per_encode);
  }
  if (limits.max_graph_tokens > limits.max_prefill_tokens ||
      limits.max_graph_crops > limits.max_crops_per_encode) {
    return invalid_argument("limits: what has a graph must fit a step");
  }
  if (limits.max_page_deltas < limits.max_pages_per_row || limits.max_page_copies < 1 ||
      limits.num_image_slots < 1 || limits.max_images_per_encode < 1) {
    return invalid_argument("limits: one row's pages, one page copy and one image must fit a step");
  }
  return ok_status();
}

Status Loop::allocate() {
  GAPLESS_ASSIGN_OR_RETURN(streams_, PipelineStreams::create(device_));
  for (int i = 0; i < options_.depth; ++i) {
    GAPLESS_ASSIGN_OR_RETURN(auto slot, StepSlot::create(device_, model_, streams_));
    slots_.push_back(std::move(slot));
  }
  GAPLESS_RETURN_IF_ERROR(streams_.synchronize());
  GAPLESS_ASSIGN_OR_RETURN(const std::int64_t offset_ns, device_.clock_offset_ns());
  ledger_.set_clock_offset_ns(offset_ns);
  ledger_.start(clock_.now_ns());
  forbidden_before_ = device_.counters().forbidden_in_steady_state();
  return ok_status();
}

std::size_t Loop::device_bytes() const {
  std::size_t bytes = 0;
  for (const auto& slot : slots_) bytes += slot->device_bytes();
  return bytes;
}

Loop::~Loop() {
  stop();
  // Copies and kernels in flight use the slots' buffers. A lost device may never be done.
  if (lost_.ok() && streams_.h2d && streams_.compute && streams_.d2h) (void)streams_.synchronize();
}

// ---- any thread

StatusOr<SequenceId> Loop::submit(PreparedPrompt prompt, std::shared_ptr<TokenSink> sink) {
  GAPLESS_RETURN_IF_ERROR(seating_.check_fits(prompt));
  GAPLESS_RETURN_IF_ERROR(device_status());
  if (num_waiting_.fetch_add(1) >= options_.max_waiting) {
    num_waiting_.fetch_sub(1);
    return make_error(StatusCode::kResourceExhausted, "{} requests are waiting already",
                      options_.max_waiting);
  }
  auto sequence = std::make_unique<Sequence>();
  const SequenceId id(next_sequence_.fetch_add(1));
  sequence->id = id;
  sequence->prompt = std::move(prompt);
  sequence->image_slots.resize(sequence->prompt.images.size());
  sequence->sink = std::move(sink);
  const std::int64_t came_in_ns = sequence->prompt.submitted_ns;
  sequence->times.queued_ns = clock_.now_ns();
  sequence->times.submitted_ns = came_in_ns != 0 ? came_in_ns : sequence->times.queued_ns;
  if (!mailbox_.post(sequence)) {
    num_waiting_.fetch_sub(1);
    return make_error(StatusCode::kUnavailable, "the engine is stopping");
  }
  return id;
}

Loop::Preparation::Preparation(Loop& loop, std::int64_t since_ns) : loop_(&loop) {
  loop.ledger_.begin_preparing(since_ns);
  loop.mailbox_.announce();
}

Loop::Preparation::~Preparation() {
  if (loop_ == nullptr) return;
  loop_->mailbox_.retract();
  loop_->ledger_.end_preparing(loop_->clock_.now_ns());
}

void Loop::cancel(SequenceId sequence) {
  mailbox_.post_cancellation(sequence);
}

void Loop::set_active_depth(int depth) {
  active_depth_.store(std::clamp(depth, 1, this->depth()), std::memory_order_relaxed);
}

Loop::Counts Loop::counts() const {
  MutexLock lock(shared_mutex_);
  return counts_;
}

Status Loop::device_status() const {
  MutexLock lock(shared_mutex_);
  return shared_lost_;
}

std::int64_t Loop::forbidden_calls() const {
  return device_.counters().forbidden_in_steady_state() - forbidden_before_;
}

// ---- the thread

void Loop::start() {
  GAPLESS_CHECK_MSG(!thread_.joinable(), "the loop runs already");
  thread_ = std::thread([this] { run(); });
}

void Loop::run() {
  while (tick() == Tick::kWorked || mailbox_.wait()) {
  }
}

void Loop::drain() {
  mailbox_.close();
  if (thread_.joinable()) thread_.join();
}

void Loop::stop() {
  cancel_everything_.store(true);
  mailbox_.close();
  if (thread_.joinable()) thread_.join();
  // Without a thread, or for what it had no time to see.
  while (tick() == Tick::kWorked) {
  }
}

// ---- the loop

Loop::Tick Loop::tick() {
  take_mail();
  if (!has_work()) {
    if (!idle_since_ns_) {
      idle_since_ns_ = clock_.now_ns();
      ledger_.idle_since(*idle_since_ns_);
    }
    publish_counts();
    return Tick::kIdle;
  }
  if (idle_since_ns_) {
    // Waking up is not idling: work was queued.
    ledger_.add_phase(HostPhaseKind::kIdle, -1, *idle_since_ns_,
                      std::max(*idle_since_ns_, idle_until_ns_));
    idle_since_ns_.reset();
  }
  seat_waiting();
  const bool launched = launch_next();
  finalize_ready();  // rows whose previous token is committed already
  if (!launched || !may_launch()) commit_oldest();
  finalize_ready();  // rows whose previous token that was
  publish_counts();
  return Tick::kWorked;
}

// Fewer steps than slots may be wanted; those that are in flight already are committed first.
bool Loop::may_launch() const {
  return state_.can_launch() && state_.num_in_flight() < active_depth() && !awaits_ends();
}

// A decode step is in flight in which so many rows may end that it does not pay to run ahead of it.
bool Loop::awaits_ends() const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const bool in_flight = state_.phase(SlotId(static_cast<std::int32_t>(i))) != SlotPhase::kFree;
    const StepPlan& plan = steps_[i].plan;
    if (in_flight && plan.kind == StepKind::kDecode && !run_ahead_.pays(plan.num_rows)) return true;
  }
  return false;
}

bool Loop::has_work() const {
  return !state_.is_empty() || !seating_.is_empty() || !waiting_.empty();
}

void Loop::take_mail() {
  mailbox_.collect(mail_);
  if (!mail_.arrivals.empty()) idle_until_ns_ = mail_.arrivals.front()->times.queued_ns;
  for (auto& sequence : mail_.arrivals) {
    if (lost_.ok()) {
      sequence->needs_encode = seating_.needs_encode(*sequence);
      seats_changed_ |= !sequence->needs_encode;
      waiting_.push_back(std::move(sequence));
    } else {
      num_waiting_.fetch_sub(1);
      finish(*sequence, FinishReason::kError, lost_);
    }
  }
  for (const SequenceId sequence : mail_.cancellations) cancel_one(sequence);
  mail_.arrivals.clear();
  mail_.cancellations.clear();
  if (cancel_everything_.load(std::memory_order_relaxed)) cancel_all();
}

void Loop::seat_waiting() {
  while (seats_changed_ && !waiting_.empty()) {
    const auto next = next_to_seat();
    seats_changed_ = next != waiting_.end() && state_.has_free_seat();
    if (!seats_changed_) return;
    Sequence* const sequence = next->get();
    seats_changed_ = seating_.seat(*next);
    if (!seats_changed_) {
      GAPLESS_CHECK_MSG(!seating_.is_empty(), "a request that fits was not seated");
      return;
    }
    must(state_.seat(sequence->row, sequence->id));
    waiting_.erase(next);
    num_waiting_.fetch_sub(1);
  }
}

// The first in line. Who waits for an encode would only hold a seat while as many images as a step
// takes wait for one already, so those who need none pass.
std::deque<std::unique_ptr<Sequence>>::iterator Loop::next_to_seat() {
  const bool encodes_wait = seating_.num_to_encode() >= model_.limits().max_images_per_encode;
  return std::find_if(waiting_.begin(), waiting_.end(), [encodes_wait](const auto& sequence) {
    return !(encodes_wait && sequence->needs_encode);
  });
}

bool Loop::launch_next() {
  if (!may_launch()) return false;
  const SlotId slot = *state_.free_slot();
  StepRecord record;
  record.plan_begin_ns = clock_.now_ns();
  const auto plan = plan_step(seating_.views([this](RowId row) { return state_.is_finalized(row); },
                                             [this](RowId row) { return mask_is_ready(row); }),
                              model_.limits(), fill_turn_);
  if (!plan) return false;
  // Rule 5.
  if (fill_turn_.last_fill_was_long && plan->kind != StepKind::kDecode && !state_.is_empty()) {
    return false;
  }
  record.number = num_steps_++;
  record.launch_begin_ns = clock_.now_ns();
  step(slot) = {*plan, record, 0};
  const Status status = launch(slot);
  step(slot).record.launch_end_ns = clock_.now_ns();
  add_phase(HostPhaseKind::kPlan, slot, record.plan_begin_ns, record.launch_begin_ns);
  add_phase(HostPhaseKind::kLaunch, slot, record.launch_begin_ns, step(slot).record.launch_end_ns);
  if (!status.ok()) {
    fail_launch(slot, status);
    return false;
  }
  note_launched(slot);
  ledger_.launched(record.number, record.launch_begin_ns);
  return true;
}

void Loop::finalize_ready() {
  const auto slot = state_.awaiting_finalize();
  if (!slot || !state_.can_finalize(*slot)) return;
  StepRecord& record = step(*slot).record;
  record.finalize_begin_ns = clock_.now_ns();
  build_masks(*slot);
  const Status status = slots_[index(*slot)]->launch_sampling(step(*slot).plan.num_host_masked);
  record.finalize_end_ns = clock_.now_ns();
  add_phase(HostPhaseKind::kFinalize, *slot, record.finalize_begin_ns, record.finalize_end_ns);
  if (!status.ok()) return fail_launch(*slot, status);
  must(state_.sampling_launched(*slot));
}

void Loop::commit_oldest() {
  const auto slot = state_.oldest();
  if (!slot || state_.phase(*slot) != SlotPhase::kLaunched) return;
  StepRecord& record = step(*slot).record;
  record.commit_begin_ns = clock_.now_ns();
  must(state_.begin_commit(*slot));
  const SureTime::Work work = work_of(step(*slot));
  nap(step(*slot), work);
  const Status status = wait_for(*slot);
  record.wait_end_ns = clock_.now_ns();
  add_phase(HostPhaseKind::kWait, *slot, record.commit_begin_ns, record.wait_end_ns);
  if (!status.ok()) return lose_device(status);
  commit_outputs(*slot);
  sure_time_.committed(work, record.sampling_end_ns - record.forward_begin_ns);
  fill_turn_.ended(record.kind, record.sampling_end_ns - record.forward_begin_ns,
                   model_.limits().long_fill_ns);
  if (options_.host_delay_ns > 0 && record.kind == StepKind::kDecode) {
    clock_.spend_ns(options_.host_delay_ns);
  }
  must(state_.end_commit(*slot));
  for (const RowId row : step(*slot).plan.rows()) release_if_done(row);
  record.commit_end_ns = clock_.now_ns();
  add_phase(HostPhaseKind::kCommit, *slot, record.wait_end_ns, record.commit_end_ns);
  remember(step(*slot));
  device_free_ns_ = ledger_.add(record);
}

}  // namespace gapless
