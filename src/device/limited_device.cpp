#include "device/limited_device.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"

namespace gapless {
namespace {

class LimitedDevice final : public Device {
 public:
  LimitedDevice(std::unique_ptr<Device> device, std::size_t max_bytes)
      : device_(std::move(device)), max_bytes_(max_bytes) {}

  StatusOr<DeviceInfo> info() override {
    GAPLESS_ASSIGN_OR_RETURN(DeviceInfo info, device_->info());
    MutexLock lock(mutex_);
    info.total_memory_bytes = std::min(info.total_memory_bytes, max_bytes_);
    info.free_memory_bytes = std::min(info.free_memory_bytes, max_bytes_ - taken_);
    return info;
  }
  DeviceKind kind() const override { return device_->kind(); }

  StatusOr<Buffer> allocate(std::size_t bytes) override {
    if (bytes == 0) return Buffer();
    {
      MutexLock lock(mutex_);
      if (bytes > max_bytes_ - taken_) {
        return make_error(StatusCode::kResourceExhausted,
                          "{} bytes of device memory wanted, {} left of the {} that were allowed",
                          bytes, max_bytes_ - taken_, max_bytes_);
      }
      taken_ += bytes;
    }
    StatusOr<Buffer> buffer = device_->allocate(bytes);
    MutexLock lock(mutex_);
    if (!buffer.ok()) {
      taken_ -= bytes;
      return buffer.status();
    }
    void* const data = buffer->data();
    buffers_.emplace(data, std::move(buffer).value());
    return Buffer(this, data, bytes);
  }
  StatusOr<PinnedBuffer> allocate_pinned(std::size_t bytes) override {
    return device_->allocate_pinned(bytes);
  }
  StatusOr<std::unique_ptr<Stream>> create_stream(std::string_view name) override {
    return device_->create_stream(name);
  }
  StatusOr<std::unique_ptr<Event>> create_event() override { return device_->create_event(); }
  StatusOr<std::int64_t> clock_offset_ns() override { return device_->clock_offset_ns(); }
  DeviceCounters counters() const override { return device_->counters(); }

 protected:
  void free_device(void* data) override {
    Buffer freed;
    MutexLock lock(mutex_);
    const auto found = buffers_.find(data);
    GAPLESS_CHECK(found != buffers_.end());
    freed = std::move(found->second);
    taken_ -= freed.size_bytes();
    buffers_.erase(found);
  }
  void free_pinned(void*) override { GAPLESS_CHECK_MSG(false, "not this device's memory"); }

 private:
  const std::unique_ptr<Device> device_;
  const std::size_t max_bytes_;
  Mutex mutex_;
  std::size_t taken_ GAPLESS_GUARDED_BY(mutex_) = 0;
  std::map<void*, Buffer> buffers_ GAPLESS_GUARDED_BY(mutex_);  // the device's own
};

}  // namespace

std::unique_ptr<Device> limit_device_memory(std::unique_ptr<Device> device, std::size_t max_bytes) {
  return std::make_unique<LimitedDevice>(std::move(device), max_bytes);
}

}  // namespace gapless
