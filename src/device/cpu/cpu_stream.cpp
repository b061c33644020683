#include "device/cpu/cpu_stream.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/whole_pages.h"
#include "device/cpu/cpu_device.h"

namespace gapless {
namespace {

// The operating system keeps 15 characters of a thread's name.
void name_thread(std::thread& thread, std::string_view name) {
  const std::string short_name(name.substr(0, 15));
  (void)pthread_setname_np(thread.native_handle(), short_name.c_str());
}

constexpr std::size_t kLargeFillBytes = std::size_t{1} << 20;

// Gives whole pages back, which come as zeros when they are touched: memory that is never used, as most of a
// KV cache is, costs neither time nor memory. False: nothing was done. The device's memory is the heap's, so
// its pages are this process's own.
bool fill_with_zero_pages(void* to, std::size_t bytes) {
  const WholePages pages = whole_pages(to, bytes);
  if (pages.size() == 0) return false;
  if (madvise(pages.data(), pages.size(), MADV_DONTNEED) != 0) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(to), end = begin + bytes;
  std::memset(to, 0, pages.begin - begin);
  std::memset(reinterpret_cast<void*>(pages.end), 0, end - pages.end);
  return true;
}

Status run_op(const CpuOp& op) {
  try {
    return op();
  } catch (const std::exception& error) {
    return make_error(StatusCode::kDeviceError, "exception: {}", error.what());
  }
}

}  // namespace

void CpuPoint::reach(const Status& state) {
  // Notified under the lock: a waiter may let go of the last reference as soon as it has the lock.
  MutexLock lock(mutex_);
  reached_ = true;
  state_ = state;
  reached_changed_.notify_all();
}

bool CpuPoint::is_reached() {
  MutexLock lock(mutex_);
  return reached_;
}

Status CpuPoint::wait() {
  MutexLock lock(mutex_);
  while (!reached_) reached_changed_.wait(lock);
  return state_;
}

// In parts: this device stands still while its process is stopped (Ctrl-Z) and the clock does not, which costs the wait the part
// that it was in.
bool CpuPoint::wait_for(std::int64_t timeout_ns) {
  constexpr int kNumParts = 8;
  const std::chrono::nanoseconds part(timeout_ns / kNumParts);
  MutexLock lock(mutex_);
  for (int i = 0; i < kNumParts; ++i) {
    const auto deadline = std::chrono::steady_clock::now() + part;
    while (!reached_ && reached_changed_.wait_until(lock, deadline)) {
    }
  }
  return reached_;
}

CpuEvent::CpuEvent(CpuDevice& device) : device_(device) {
  ++device_.num_live_;
}

CpuEvent::~CpuEvent() {
  --device_.num_live_;
}

StatusOr<bool> CpuEvent::is_complete() {
  if (latest_ == nullptr) return true;
  if (!latest_->is_reached()) return false;
  GAPLESS_RETURN_IF_ERROR(latest_->wait());
  return true;
}

Status CpuEvent::synchronize() {
  count(device_.counter_cells_.event_waits);
  return latest_ == nullptr ? ok_status() : latest_->wait();
}

StatusOr<bool> CpuEvent::synchronize_within(std::int64_t timeout_ns) {
  count(device_.counter_cells_.event_waits);
  if (latest_ == nullptr) return true;
  if (!latest_->wait_for(timeout_ns)) return false;
  GAPLESS_RETURN_IF_ERROR(latest_->wait());
  return true;
}

CpuGraph::CpuGraph(CpuDevice& device, std::vector<CpuOp> ops)
    : device_(device), ops_(std::make_shared<const std::vector<CpuOp>>(std::move(ops))) {
  ++device_.num_live_;
}

CpuGraph::~CpuGraph() {
  --device_.num_live_;
}

CpuStream::CpuStream(CpuDevice& device, std::string_view name)
    : device_(device), name_(name), queue_(kMaxQueuedCpuOps), thread_([this] { run(); }) {
  name_thread(thread_, name_);
  ++device_.num_live_;
  MutexLock lock(device_.streams_mutex_);
  device_.streams_.push_back(this);
}

CpuStream::~CpuStream() {
  {
    MutexLock lock(device_.streams_mutex_);
    std::erase(device_.streams_, this);
  }
  queue_.close();
  thread_.join();
  --device_.num_live_;
}

void CpuStream::run() {
  Status state;
  while (auto item = queue_.pop()) (*item)(state);
}

void CpuStream::push(Item item) {
  GAPLESS_CHECK(queue_.push(std::move(item)));
}

Status CpuStream::enqueue(CpuOp op) {
  if (flag_ != nullptr) {
    op = [flag = flag_, then = std::move(op)] { return *flag != 0 ? then() : ok_status(); };
  }
  if (capturing_) {
    captured_.push_back(std::move(op));
    return ok_status();
  }
  push([this, op = std::move(op)](Status& state) {
    if (state.ok()) state = run_op(op).with_context(name_);
  });
  return ok_status();
}

Status CpuStream::drain() {
  auto point = std::make_shared<CpuPoint>();
  push([point](Status& state) { point->reach(state); });
  return point->wait();
}

Status CpuStream::refuse_during_capture(std::string_view call) const {
  if (!capturing_) return ok_status();
  return invalid_argument("stream {}: {} during a capture", name_, call);
}

Status CpuStream::check_pinned(std::string_view call, const void* data, std::size_t bytes) const {
  if (device_.pinned_ranges_.contains(data, bytes)) return ok_status();
  count(device_.counter_cells_.pageable_copies);
  return invalid_argument("stream {}: {}: host memory is not pinned", name_, call);
}

Status CpuStream::copy_to_device(void* to_dev, const void* from_pinned, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(check_pinned("copy_to_device", from_pinned, bytes));
  return copy_on_device(to_dev, from_pinned, bytes);
}

Status CpuStream::copy_to_host(void* to_pinned, const void* from_dev, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(check_pinned("copy_to_host", to_pinned, bytes));
  return copy_on_device(to_pinned, from_dev, bytes);
}

Status CpuStream::copy_on_device(void* to_dev, const void* from_dev, std::size_t bytes) {
  return enqueue([=] {
    std::memcpy(to_dev, from_dev, bytes);
    return ok_status();
  });
}

Status CpuStream::fill_bytes(void* to_dev, std::uint8_t value, std::size_t bytes) {
  return enqueue([=] {
    if (value != 0 || bytes < kLargeFillBytes || !fill_with_zero_pages(to_dev, bytes)) {
      std::memset(to_dev, value, bytes);
    }
    return ok_status();
  });
}

Status CpuStream::record(Event& event) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("record"));
  auto* const cpu_event = dynamic_cast<CpuEvent*>(&event);
  if (cpu_event == nullptr) return invalid_argument("stream {}: event of another device", name_);
  auto point = std::make_shared<CpuPoint>();
  cpu_event->latest_ = point;
  push([point = std::move(point)](Status& state) { point->reach(state); });
  return ok_status();
}

Status CpuStream::wait(Event& event) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("wait"));
  auto* const cpu_event = dynamic_cast<CpuEvent*>(&event);
  if (cpu_event == nullptr) return invalid_argument("stream {}: event of another device", name_);
  if (cpu_event->latest_ == nullptr) return ok_status();
  // What the other stream failed to make is missing here too, so its error comes along.
  push([point = cpu_event->latest_](Status& state) {
    const Status other = point->wait();
    if (state.ok()) state = other;
  });
  return ok_status();
}

Status CpuStream::begin_capture() {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("begin_capture"));
  capturing_ = true;
  return ok_status();
}

StatusOr<std::unique_ptr<Graph>> CpuStream::end_capture() {
  if (!capturing_) return invalid_argument("stream {}: end_capture without a capture", name_);
  if (flag_ != nullptr) return invalid_argument("stream {}: end_capture before end_if", name_);
  capturing_ = false;
  count(device_.counter_cells_.allocations);
  return std::unique_ptr<Graph>(std::make_unique<CpuGraph>(device_, std::exchange(captured_, {})));
}

Status CpuStream::launch(Graph& graph) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("launch"));
  auto* const cpu_graph = dynamic_cast<CpuGraph*>(&graph);
  if (cpu_graph == nullptr) return invalid_argument("stream {}: graph of another device", name_);
  push([this, ops = cpu_graph->ops_](Status& state) {
    for (const CpuOp& op : *ops) {
      if (!state.ok()) return;
      state = run_op(op).with_context(name_);
    }
  });
  return ok_status();
}

Status CpuStream::begin_if(const std::uint32_t* flag_dev) {
  if (flag_ != nullptr) return invalid_argument("stream {}: begin_if before end_if", name_);
  flag_ = flag_dev;
  return ok_status();
}

Status CpuStream::end_if() {
  if (flag_ == nullptr) return invalid_argument("stream {}: end_if without begin_if", name_);
  flag_ = nullptr;
  return ok_status();
}

Status CpuStream::synchronize() {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("synchronize"));
  count(device_.counter_cells_.synchronizations);
  return drain();
}

}  // namespace gapless
