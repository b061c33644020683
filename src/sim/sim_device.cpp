#include "sim/sim_device.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "sim/sim_stream.h"

namespace gapless {
namespace {

constexpr std::align_val_t kAlignment{256};

}  // namespace

SimTimes SimTimes::free() {
  constexpr double kNoTime = 1e30;
  return {.host_call_ns = 0,
          .launch_latency_ns = 0,
          .event_latency_ns = 0,
          .wake_ns = 0,
          .copy_latency_ns = 0,
          .copy_bytes_per_ns = kNoTime,
          .device_bytes_per_ns = kNoTime};
}

std::int64_t busy_ns_within(const std::vector<SimInterval>& timeline, std::int64_t begin_ns,
                            std::int64_t end_ns) {
  std::int64_t busy_ns = 0;
  std::int64_t covered_until_ns = begin_ns;
  for (const SimInterval& interval : timeline) {
    const std::int64_t from = std::max(interval.begin_ns, covered_until_ns);
    const std::int64_t to = std::min(interval.end_ns, end_ns);
    if (to <= from) continue;
    busy_ns += to - from;
    covered_until_ns = to;
  }
  return busy_ns;
}

SimDevice::SimDevice(SimConfig config) : config_(std::move(config)), faults_(config_.faults) {}

SimDevice::~SimDevice() {
  GAPLESS_CHECK_MSG(num_live_ == 0, "something made by the simulated device outlives it");
}

Status SimDevice::begin_call(SimCall call, std::string_view stream) {
  GAPLESS_CHECK_MSG(!running_effects_, "an effect calls the device");
  // Even a free poll takes a nanosecond, so that a loop of polls comes to an end.
  const bool is_poll = call == SimCall::kEventIsComplete;
  advance_to(now_ns_ + std::max<std::int64_t>(config_.times.host_call_ns, is_poll ? 1 : 0));
  return faults_.on_call(call, stream);
}

void SimDevice::host_busy(std::int64_t duration_ns) {
  GAPLESS_CHECK(duration_ns >= 0);
  advance_to(now_ns_ + duration_ns);
}

void SimDevice::advance_to(std::int64_t time_ns) {
  GAPLESS_CHECK_MSG(!running_effects_, "an effect moves the host's clock");
  now_ns_ = std::max(now_ns_, time_ns);
  run_effects();
}

void SimDevice::run_effects() {
  running_effects_ = true;
  while (true) {
    SimStream* next = nullptr;
    for (SimStream* stream : streams_) {
      if (stream->pending_.empty()) continue;
      const SimStream::Pending& candidate = stream->pending_.front();
      if (candidate.time_ns > now_ns_) continue;
      if (next == nullptr || candidate.time_ns < next->pending_.front().time_ns ||
          (candidate.time_ns == next->pending_.front().time_ns &&
           candidate.order < next->pending_.front().order)) {
        next = stream;
      }
    }
    if (next == nullptr) break;
    effect_time_ns_ = next->pending_.front().time_ns;
    next->run_first_pending();
  }
  running_effects_ = false;
}

void SimDevice::finish_all_work() {
  std::int64_t end_ns = now_ns_;
  for (const SimStream* stream : streams_) end_ns = std::max(end_ns, stream->tail_ns_);
  advance_to(end_ns);
}

void SimDevice::report_race(std::string description) {
  if (num_races_++ == 0) first_race_ = std::move(description);
}

std::uint64_t SimDevice::device_clock_ns() const {
  const std::int64_t host_ns = running_effects_ ? effect_time_ns_ : now_ns_;
  return static_cast<std::uint64_t>(host_ns - config_.clock_offset_ns);
}

const std::vector<SimInterval>& SimDevice::timeline(std::string_view stream) const {
  static const std::vector<SimInterval> kNone;
  for (auto it = timelines_.rbegin(); it != timelines_.rend(); ++it) {
    if ((*it)->stream == stream) return (*it)->intervals;
  }
  return kNone;
}

StatusOr<DeviceInfo> SimDevice::info() {
  return DeviceInfo{.kind = DeviceKind::kSimulated,
                    .name = config_.name,
                    .total_memory_bytes = config_.total_memory_bytes,
                    .free_memory_bytes = config_.total_memory_bytes - allocated_bytes_,
                    .num_multiprocessors = 0};
}

StatusOr<void*> SimDevice::allocate_bytes(SimCall call, std::size_t bytes) {
  count(counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(begin_call(call, ""));
  if (bytes > config_.total_memory_bytes - allocated_bytes_) {
    return make_error(StatusCode::kResourceExhausted,
                      "simulated device: {} bytes asked for, {} of {} are allocated", bytes,
                      allocated_bytes_, config_.total_memory_bytes);
  }
  void* const data = ::operator new(bytes, kAlignment);
  std::memset(data, kSimScribble, bytes);
  bytes_by_allocation_[data] = bytes;
  allocated_bytes_ += bytes;
  ++num_live_;
  return data;
}

void SimDevice::free_bytes(void* data) {
  count(counter_cells_.synchronizations);
  finish_all_work();
  const auto found = bytes_by_allocation_.find(data);
  GAPLESS_CHECK(found != bytes_by_allocation_.end());
  allocated_bytes_ -= found->second;
  bytes_by_allocation_.erase(found);
  ::operator delete(data, kAlignment);
  --num_live_;
}

StatusOr<Buffer> SimDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return Buffer();
  GAPLESS_ASSIGN_OR_RETURN(void* const data, allocate_bytes(SimCall::kAllocate, bytes));
  return Buffer(this, data, bytes);
}

StatusOr<PinnedBuffer> SimDevice::allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return PinnedBuffer();
  GAPLESS_ASSIGN_OR_RETURN(void* const data, allocate_bytes(SimCall::kAllocatePinned, bytes));
  pinned_ranges_.add(data, bytes);
  return PinnedBuffer(this, data, bytes);
}

void SimDevice::free_device(void* data) {
  free_bytes(data);
}

void SimDevice::free_pinned(void* data) {
  pinned_ranges_.remove(data);
  free_bytes(data);
}

StatusOr<std::unique_ptr<Stream>> SimDevice::create_stream(std::string_view name) {
  count(counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(begin_call(SimCall::kCreateStream, name));
  std::vector<SimInterval>* timeline = nullptr;
  if (config_.record_timeline) {
    timelines_.push_back(std::make_unique<StreamTimeline>());
    timelines_.back()->stream = name;
    timeline = &timelines_.back()->intervals;
  }
  return std::unique_ptr<Stream>(std::make_unique<SimStream>(*this, name, timeline));
}

StatusOr<std::unique_ptr<Event>> SimDevice::create_event() {
  count(counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(begin_call(SimCall::kCreateEvent, ""));
  return std::unique_ptr<Event>(std::make_unique<SimEvent>(*this));
}

StatusOr<std::int64_t> SimDevice::clock_offset_ns() {
  count(counter_cells_.synchronizations);
  GAPLESS_RETURN_IF_ERROR(begin_call(SimCall::kClockOffset, ""));
  return config_.clock_offset_ns;
}

}  // namespace gapless
