#include "device/cpu/cpu_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "base/check.h"
#include "device/cpu/cpu_stream.h"

namespace gapless {
namespace {

constexpr std::align_val_t kAlignment{256};

std::size_t physical_memory_bytes() {
  const long num_pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  GAPLESS_CHECK(num_pages > 0 && page_bytes > 0);
  return static_cast<std::size_t>(num_pages) * static_cast<std::size_t>(page_bytes);
}

#ifdef GAPLESS_POISON_ALLOCATIONS
// 0x7fc0 repeated: a NaN in float32, bfloat16 and float16, and an index far out of range.
void poison(void* data, std::size_t bytes) {
  static const std::vector<std::uint16_t> pattern(32'768, 0x7fc0);
  auto* const out = static_cast<char*>(data);
  const std::size_t pattern_bytes = pattern.size() * sizeof(pattern[0]);
  for (std::size_t done = 0; done < bytes; done += pattern_bytes) {
    std::memcpy(out + done, pattern.data(), std::min(pattern_bytes, bytes - done));
  }
}
#else
void poison(void*, std::size_t) {}
#endif

}  // namespace

CpuDevice::CpuDevice() : total_memory_bytes_(physical_memory_bytes()) {}

CpuDevice::~CpuDevice() {
  GAPLESS_CHECK_MSG(num_live_ == 0, "something made by the CPU device outlives it");
}

StatusOr<DeviceInfo> CpuDevice::info() {
  MutexLock lock(memory_mutex_);
  return DeviceInfo{.kind = DeviceKind::kCpu,
                    .name = "CPU",
                    .total_memory_bytes = total_memory_bytes_,
                    .free_memory_bytes = total_memory_bytes_ - allocated_bytes_,
                    .num_multiprocessors = 0};
}

StatusOr<void*> CpuDevice::allocate_bytes(std::size_t bytes) {
  count(counter_cells_.allocations);
  MutexLock lock(memory_mutex_);
  // Linux would promise more than there is, and end the process when the promise is called in.
  void* data = nullptr;
  if (bytes <= total_memory_bytes_ - allocated_bytes_) {
    data = ::operator new(bytes, kAlignment, std::nothrow);
  }
  if (data == nullptr) {
    return make_error(StatusCode::kResourceExhausted,
                      "CPU device: {} bytes asked for, {} of {} are allocated", bytes,
                      allocated_bytes_, total_memory_bytes_);
  }
  poison(data, bytes);
  bytes_by_allocation_[data] = bytes;
  allocated_bytes_ += bytes;
  ++num_live_;
  return data;
}

void CpuDevice::free_bytes(void* data) {
  count(counter_cells_.synchronizations);
  drain_streams();
  {
    MutexLock lock(memory_mutex_);
    const auto found = bytes_by_allocation_.find(data);
    GAPLESS_CHECK(found != bytes_by_allocation_.end());
    allocated_bytes_ -= found->second;
    bytes_by_allocation_.erase(found);
  }
  ::operator delete(data, kAlignment);
  --num_live_;
}

StatusOr<Buffer> CpuDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return Buffer();
  GAPLESS_ASSIGN_OR_RETURN(void* const data, allocate_bytes(bytes));
  return Buffer(this, data, bytes);
}

StatusOr<PinnedBuffer> CpuDevice::allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return PinnedBuffer();
  GAPLESS_ASSIGN_OR_RETURN(void* const data, allocate_bytes(bytes));
  pinned_ranges_.add(data, bytes);
  return PinnedBuffer(this, data, bytes);
}

void CpuDevice::free_device(void* data) {
  free_bytes(data);
}

void CpuDevice::free_pinned(void* data) {
  pinned_ranges_.remove(data);
  free_bytes(data);
}

void CpuDevice::drain_streams() {
  // Held throughout, so that no stream goes away meanwhile.
  MutexLock lock(streams_mutex_);
  for (CpuStream* stream : streams_) {
    GAPLESS_CHECK_MSG(stream->thread_.get_id() != std::this_thread::get_id(),
                      "work on a stream owns a buffer");
    // An error stays with the stream; whoever synchronises with it gets to hear of it.
    (void)stream->drain();
  }
}

StatusOr<std::unique_ptr<Stream>> CpuDevice::create_stream(std::string_view name) {
  count(counter_cells_.allocations);
  return std::unique_ptr<Stream>(std::make_unique<CpuStream>(*this, name));
}

StatusOr<std::unique_ptr<Event>> CpuDevice::create_event() {
  count(counter_cells_.allocations);
  return std::unique_ptr<Event>(std::make_unique<CpuEvent>(*this));
}

StatusOr<std::int64_t> CpuDevice::clock_offset_ns() {
  count(counter_cells_.synchronizations);
  return std::int64_t{0};
}

std::unique_ptr<Device> open_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace gapless
