// The CPU acting as an accelerator. Device memory and pinned memory are both plain host memory.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "device/counter_cells.h"
#include "device/device.h"
#include "device/pinned_ranges.h"

namespace gapless {

class CpuStream;

class CpuDevice : public Device {
 public:
  CpuDevice();
  // Everything that the device made must be gone.
  ~CpuDevice() override;
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  StatusOr<DeviceInfo> info() override;
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  StatusOr<Buffer> allocate(std::size_t bytes) override;
  StatusOr<PinnedBuffer> allocate_pinned(std::size_t bytes) override;
  StatusOr<std::unique_ptr<Stream>> create_stream(std::string_view name) override;
  StatusOr<std::unique_ptr<Event>> create_event() override;
  // 0: device time is host_now_ns().
  StatusOr<std::int64_t> clock_offset_ns() override;
  DeviceCounters counters() const override { return counter_cells_.read(); }

 protected:
  // Like cudaFree, both wait for the work that is queued on every stream.
  void free_device(void* data) override;
  void free_pinned(void* data) override;

 private:
  friend class CpuStream;
  friend class CpuEvent;
  friend class CpuGraph;

  StatusOr<void*> allocate_bytes(std::size_t bytes);
  void free_bytes(void* data);
  void drain_streams();

  const std::size_t total_memory_bytes_;
  DeviceCounterCells counter_cells_;
  PinnedRanges pinned_ranges_;
  std::atomic<int> num_live_{0};  // buffers, streams, events and graphs

  Mutex streams_mutex_;
  std::vector<CpuStream*> streams_ GAPLESS_GUARDED_BY(streams_mutex_);

  Mutex memory_mutex_;
  std::map<void*, std::size_t> bytes_by_allocation_ GAPLESS_GUARDED_BY(memory_mutex_);
  std::size_t allocated_bytes_ GAPLESS_GUARDED_BY(memory_mutex_) = 0;
};

}  // namespace gapless
