#include "sim/sim_stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace gapless {
namespace {

// Any change of the bytes should change it; speed matters more than quality.
std::uint64_t hash_bytes(const void* data, std::size_t bytes) {
  const auto* in = static_cast<const unsigned char*>(data);
  std::uint64_t hash = bytes;
  for (; bytes >= 8; in += 8, bytes -= 8) {
    std::uint64_t word;
    std::memcpy(&word, in, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  for (; bytes > 0; ++in, --bytes) hash = (hash ^ *in) * 0x9e3779b97f4a7c15u;
  return hash;
}

bool is_all_scribble(const void* data, std::size_t bytes) {
  const auto* const in = static_cast<const unsigned char*>(data);
  return bytes == 0 || (in[0] == kSimScribble && std::memcmp(in, in + 1, bytes - 1) == 0);
}

std::int64_t transfer_ns(std::size_t bytes, double bytes_per_ns) {
  return std::llround(static_cast<double>(bytes) / bytes_per_ns);
}

}  // namespace

SimEvent::SimEvent(SimDevice& device) : device_(device) {
  ++device_.num_live_;
}

SimEvent::~SimEvent() {
  --device_.num_live_;
}

StatusOr<bool> SimEvent::is_complete() {
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kEventIsComplete, ""));
  if (time_ns_ > device_.now_ns()) return false;
  GAPLESS_RETURN_IF_ERROR(state_);
  return true;
}

Status SimEvent::synchronize() {
  count(device_.counter_cells_.event_waits);
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kEventSynchronize, ""));
  if (time_ns_ > device_.now_ns()) device_.advance_to(time_ns_ + device_.config_.times.wake_ns);
  return state_;
}

StatusOr<bool> SimEvent::synchronize_within(std::int64_t timeout_ns) {
  const std::int64_t deadline_ns = device_.now_ns() + timeout_ns;
  if (time_ns_ <= deadline_ns) {
    GAPLESS_RETURN_IF_ERROR(synchronize());
    return true;
  }
  count(device_.counter_cells_.event_waits);
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kEventSynchronize, ""));
  device_.advance_to(deadline_ns);
  return false;
}

SimGraph::SimGraph(SimDevice& device, std::vector<SimOp> ops)
    : device_(device), ops_(std::make_shared<const std::vector<SimOp>>(std::move(ops))) {
  ++device_.num_live_;
}

SimGraph::~SimGraph() {
  --device_.num_live_;
}

SimStream::SimStream(SimDevice& device, std::string_view name, std::vector<SimInterval>* timeline)
    : device_(device), name_(name), timeline_(timeline) {
  ++device_.num_live_;
  device_.streams_.push_back(this);
}

SimStream::~SimStream() {
  device_.advance_to(tail_ns_);
  std::erase(device_.streams_, this);
  --device_.num_live_;
}

Status SimStream::refuse_during_capture(SimCall call) const {
  if (!capturing_) return ok_status();
  return invalid_argument("stream {}: {} during a capture", name_, sim_call_name(call));
}

Status SimStream::check_pinned(SimCall call, const void* data, std::size_t bytes) const {
  if (device_.pinned_ranges_.contains(data, bytes)) return ok_status();
  count(device_.counter_cells_.pageable_copies);
  return invalid_argument("stream {}: {}: host memory is not pinned", name_, sim_call_name(call));
}

Status SimStream::enqueue(SimOp op) {
  op.flag = flag_;
  if (capturing_) {
    captured_.push_back(std::move(op));
    return ok_status();
  }
  schedule(std::make_shared<const SimOp>(std::move(op)));
  device_.run_effects();
  return ok_status();
}

void SimStream::schedule(std::shared_ptr<const SimOp> op) {
  Status fault = device_.faults_.on_op(op->label, name_);
  const std::int64_t duration_ns = device_.faults_.slowed_ns(op->duration_ns);
  if (!state_.ok()) return;
  if (!fault.ok()) state_ = std::move(fault);
  const std::int64_t begin_ns =
      std::max(tail_ns_, device_.now_ns_ + device_.config_.times.launch_latency_ns);
  tail_ns_ = begin_ns + duration_ns;
  if (timeline_ != nullptr) timeline_->push_back({begin_ns, tail_ns_, op->label});
  // Work that fails takes its time, and leaves nothing behind.
  if (!state_.ok()) return;
  const bool is_copy = op->kind == SimOp::Kind::kCopyFromHost || op->kind == SimOp::Kind::kCopy;
  if (is_copy || op->on_begin) {
    const std::uint64_t source_hash =
        op->kind == SimOp::Kind::kCopyFromHost ? hash_bytes(op->from, op->bytes) : 0;
    pending_.push_back({.time_ns = begin_ns,
                        .order = device_.next_order_++,
                        .is_begin = true,
                        .source_hash = source_hash,
                        .op = op});
  }
  pending_.push_back({.time_ns = tail_ns_,
                      .order = device_.next_order_++,
                      .is_begin = false,
                      .source_hash = 0,
                      .op = std::move(op)});
}

void SimStream::run_first_pending() {
  const Pending pending = std::move(pending_.front());
  pending_.pop_front();
  const SimOp& op = *pending.op;
  if (op.flag != nullptr && *op.flag == 0) return;
  switch (op.kind) {
    case SimOp::Kind::kKernel: {
      const std::function<void()>& effect = pending.is_begin ? op.on_begin : op.on_end;
      if (effect) effect();
      break;
    }
    case SimOp::Kind::kFill:
      std::memset(op.to, op.fill_value, op.bytes);
      break;
    case SimOp::Kind::kCopyFromHost:
    case SimOp::Kind::kCopy:
      if (pending.is_begin) {
        begin_copy(pending);
      } else {
        end_copy(op);
      }
      break;
  }
}

void SimStream::begin_copy(const Pending& pending) {
  const SimOp& op = *pending.op;
  copy_hash_ = hash_bytes(op.from, op.bytes);
  if (op.kind == SimOp::Kind::kCopyFromHost && copy_hash_ != pending.source_hash) {
    device_.report_race(fmt::format("stream {}, {} at {} ns: source written before it began", name_,
                                    op.label, device_.effect_time_ns_));
  }
  std::memset(op.to, kSimScribble, op.bytes);
}

void SimStream::end_copy(const SimOp& op) {
  if (hash_bytes(op.from, op.bytes) != copy_hash_) {
    device_.report_race(fmt::format("stream {}, {} until {} ns: source written meanwhile", name_,
                                    op.label, device_.effect_time_ns_));
  }
  if (!is_all_scribble(op.to, op.bytes)) {
    device_.report_race(fmt::format("stream {}, {} until {} ns: destination written meanwhile",
                                    name_, op.label, device_.effect_time_ns_));
  }
  std::memcpy(op.to, op.from, op.bytes);
}

Status SimStream::enqueue_kernel(SimKernel kernel) {
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kEnqueueKernel, name_));
  SimOp op;
  op.duration_ns = kernel.duration_ns;
  op.label = kernel.label;
  op.on_begin = std::move(kernel.on_begin);
  op.on_end = std::move(kernel.on_end);
  return enqueue(std::move(op));
}

Status SimStream::enqueue_kernel(std::int64_t duration_ns, std::function<void()> effect,
                                 std::string_view label) {
  return enqueue_kernel({.duration_ns = duration_ns, .on_end = std::move(effect), .label = label});
}

Status SimStream::copy_to_device(void* to_dev, const void* from_pinned, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(check_pinned(SimCall::kCopyToDevice, from_pinned, bytes));
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kCopyToDevice, name_));
  SimOp op;
  op.kind = SimOp::Kind::kCopyFromHost;
  op.duration_ns = device_.config_.times.copy_latency_ns +
                   transfer_ns(bytes, device_.config_.times.copy_bytes_per_ns);
  op.label = "copy_to_device";
  op.to = to_dev;
  op.from = from_pinned;
  op.bytes = bytes;
  return enqueue(std::move(op));
}

Status SimStream::copy_to_host(void* to_pinned, const void* from_dev, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(check_pinned(SimCall::kCopyToHost, to_pinned, bytes));
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kCopyToHost, name_));
  SimOp op;
  op.kind = SimOp::Kind::kCopy;
  op.duration_ns = device_.config_.times.copy_latency_ns +
                   transfer_ns(bytes, device_.config_.times.copy_bytes_per_ns);
  op.label = "copy_to_host";
  op.to = to_pinned;
  op.from = from_dev;
  op.bytes = bytes;
  return enqueue(std::move(op));
}

Status SimStream::copy_on_device(void* to_dev, const void* from_dev, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kCopyOnDevice, name_));
  SimOp op;
  op.kind = SimOp::Kind::kCopy;
  op.duration_ns = transfer_ns(bytes, device_.config_.times.device_bytes_per_ns);
  op.label = "copy_on_device";
  op.to = to_dev;
  op.from = from_dev;
  op.bytes = bytes;
  return enqueue(std::move(op));
}

Status SimStream::fill_bytes(void* to_dev, std::uint8_t value, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kFillBytes, name_));
  SimOp op;
  op.kind = SimOp::Kind::kFill;
  op.fill_value = value;
  op.duration_ns = transfer_ns(bytes, device_.config_.times.device_bytes_per_ns);
  op.label = "fill_bytes";
  op.to = to_dev;
  op.bytes = bytes;
  return enqueue(std::move(op));
}

Status SimStream::record(Event& event) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture(SimCall::kRecord));
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kRecord, name_));
  auto* const sim_event = dynamic_cast<SimEvent*>(&event);
  if (sim_event == nullptr) return invalid_argument("stream {}: event of another device", name_);
  sim_event->time_ns_ = std::max(tail_ns_, device_.now_ns_);
  sim_event->state_ = state_;
  return ok_status();
}

Status SimStream::wait(Event& event) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture(SimCall::kWait));
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kWait, name_));
  auto* const sim_event = dynamic_cast<SimEvent*>(&event);
  if (sim_event == nullptr) return invalid_argument("stream {}: event of another device", name_);
  if (state_.ok()) state_ = sim_event->state_;
  tail_ns_ = std::max(tail_ns_, sim_event->time_ns_ + device_.config_.times.event_latency_ns);
  return ok_status();
}

Status SimStream::begin_capture() {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture(SimCall::kBeginCapture));
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kBeginCapture, name_));
  capturing_ = true;
  return ok_status();
}

StatusOr<std::unique_ptr<Graph>> SimStream::end_capture() {
  if (!capturing_) return invalid_argument("stream {}: end_capture without a capture", name_);
  if (flag_ != nullptr) return invalid_argument("stream {}: end_capture before end_if", name_);
  capturing_ = false;
  std::vector<SimOp> ops = std::exchange(captured_, {});
  count(device_.counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kEndCapture, name_));
  return std::unique_ptr<Graph>(std::make_unique<SimGraph>(device_, std::move(ops)));
}

Status SimStream::launch(Graph& graph) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture(SimCall::kLaunch));
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kLaunch, name_));
  auto* const sim_graph = dynamic_cast<SimGraph*>(&graph);
  if (sim_graph == nullptr) return invalid_argument("stream {}: graph of another device", name_);
  for (const SimOp& op : *sim_graph->ops_) {
    // Shares the ownership of the whole list.
    schedule(std::shared_ptr<const SimOp>(sim_graph->ops_, &op));
  }
  device_.run_effects();
  return ok_status();
}

Status SimStream::begin_if(const std::uint32_t* flag_dev) {
  if (flag_ != nullptr) return invalid_argument("stream {}: begin_if before end_if", name_);
  flag_ = flag_dev;
  return ok_status();
}

Status SimStream::end_if() {
  if (flag_ == nullptr) return invalid_argument("stream {}: end_if without begin_if", name_);
  flag_ = nullptr;
  return ok_status();
}

Status SimStream::synchronize() {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture(SimCall::kStreamSynchronize));
  count(device_.counter_cells_.synchronizations);
  GAPLESS_RETURN_IF_ERROR(device_.begin_call(SimCall::kStreamSynchronize, name_));
  if (tail_ns_ > device_.now_ns_) device_.advance_to(tail_ns_ + device_.config_.times.wake_ns);
  return state_;
}

}  // namespace gapless
