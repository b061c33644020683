#include "device/dry_device.h"

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace gapless {
namespace {

constexpr std::size_t kDryAlignment = 256;

class DryEvent final : public Event {
 public:
  StatusOr<bool> is_complete() override { return true; }
  Status synchronize() override { return ok_status(); }
  StatusOr<bool> synchronize_within(std::int64_t) override { return true; }
};

class DryStream final : public Stream {
 public:
  explicit DryStream(std::string_view name) : name_(name) {}

  std::string_view name() const override { return name_; }
  Status copy_to_device(void*, const void*, std::size_t) override { return ok_status(); }
  Status copy_to_host(void*, const void*, std::size_t) override { return ok_status(); }
  Status copy_on_device(void*, const void*, std::size_t) override { return ok_status(); }
  Status fill_bytes(void*, std::uint8_t, std::size_t) override { return ok_status(); }
  Status record(Event&) override { return ok_status(); }
  Status wait(Event&) override { return ok_status(); }
  Status begin_capture() override { return ok_status(); }
  StatusOr<std::unique_ptr<Graph>> end_capture() override { return std::make_unique<Graph>(); }
  Status launch(Graph&) override { return ok_status(); }
  Status begin_if(const std::uint32_t*) override { return ok_status(); }
  Status end_if() override { return ok_status(); }
  Status synchronize() override { return ok_status(); }
  void* native_handle() override { return this; }

 private:
  const std::string name_;
};

class CountingDryDevice final : public DryDevice {
 public:
  explicit CountingDryDevice(DeviceInfo info) : info_(std::move(info)) {}

  StatusOr<DeviceInfo> info() override {
    DeviceInfo now = info_;
    now.free_memory_bytes -= allocated_bytes();
    return now;
  }
  DeviceKind kind() const override { return info_.kind; }

  StatusOr<Buffer> allocate(std::size_t bytes) override {
    if (bytes == 0) return Buffer();
    const std::size_t taken = (bytes + kDryAlignment - 1) / kDryAlignment * kDryAlignment;
    MutexLock lock(mutex_);
    if (taken > info_.free_memory_bytes - allocated_) {
      return make_error(StatusCode::kResourceExhausted, "{}: {} bytes wanted, {} free", info_.name,
                        bytes, info_.free_memory_bytes - allocated_);
    }
    auto* const data = reinterpret_cast<void*>(next_address_);
    next_address_ += taken + kDryAlignment;
    allocated_ += taken;
    buffers_.emplace(data, taken);
    return Buffer(this, data, bytes);
  }
  StatusOr<PinnedBuffer> allocate_pinned(std::size_t bytes) override {
    if (bytes == 0) return PinnedBuffer();
    auto memory = std::make_unique<std::vector<std::byte>>(bytes);
    std::byte* const data = memory->data();
    MutexLock lock(mutex_);
    pinned_.emplace(data, std::move(memory));
    return PinnedBuffer(this, data, bytes);
  }

  StatusOr<std::unique_ptr<Stream>> create_stream(std::string_view name) override {
    return std::unique_ptr<Stream>(std::make_unique<DryStream>(name));
  }
  StatusOr<std::unique_ptr<Event>> create_event() override {
    return std::unique_ptr<Event>(std::make_unique<DryEvent>());
  }
  StatusOr<std::int64_t> clock_offset_ns() override { return 0; }
  DeviceCounters counters() const override { return {}; }

  std::size_t allocated_bytes() const override {
    MutexLock lock(mutex_);
    return allocated_;
  }

 protected:
  void free_device(void* data) override {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(data);
    if (found == buffers_.end()) return;
    allocated_ -= found->second;
    buffers_.erase(found);
  }
  void free_pinned(void* data) override {
    MutexLock lock(mutex_);
    pinned_.erase(data);
  }

 private:
  const DeviceInfo info_;  // as it was when nothing was allocated
  mutable Mutex mutex_;
  // Far from everything that a host maps.
  std::uintptr_t next_address_ GAPLESS_GUARDED_BY(mutex_) = std::uintptr_t{1} << 56;
  std::size_t allocated_ GAPLESS_GUARDED_BY(mutex_) = 0;
  std::map<void*, std::size_t> buffers_ GAPLESS_GUARDED_BY(mutex_);
  std::map<void*, std::unique_ptr<std::vector<std::byte>>> pinned_ GAPLESS_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<DryDevice> make_dry_device(DeviceInfo info) {
  return std::make_unique<CountingDryDevice>(std::move(info));
}

}  // namespace gapless
