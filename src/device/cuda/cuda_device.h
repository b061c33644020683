// One NVIDIA GPU through its primary context. Plain allocations only: no managed memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <string>

#include "device/counter_cells.h"
#include "device/cuda/device_clock.h"
#include "device/device.h"
#include "device/pinned_ranges.h"

namespace gapless {

class CudaDevice : public Device {
 public:
  // Unavailable when there is no such device, or this build holds no code for it.
  static StatusOr<std::unique_ptr<Device>> open(int ordinal);

  // Everything that the device made must be gone.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  StatusOr<DeviceInfo> info() override;
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  StatusOr<Buffer> allocate(std::size_t bytes) override;
  StatusOr<PinnedBuffer> allocate_pinned(std::size_t bytes) override;
  StatusOr<std::unique_ptr<Stream>> create_stream(std::string_view name) override;
  StatusOr<std::unique_ptr<Event>> create_event() override;
  // Device time is %globaltimer. Exact to about a microsecond.
  StatusOr<std::int64_t> clock_offset_ns() override;
  DeviceCounters counters() const override { return counter_cells_.read(); }

 protected:
  // Both wait for the device first.
  void free_device(void* data) override;
  void free_pinned(void* data) override;

 private:
  friend class CudaStream;
  friend class CudaEvent;
  friend class CudaGraph;

  CudaDevice(int ordinal, const cudaDeviceProp& properties);
  Status start();
  // CUDA's current device belongs to the thread, and a thread may work for several devices: whatever
  // calls CUDA for this one begins with this, so that nobody has to know which call needs it.
  Status make_current() const;
  void free_with(cudaError_t (*free_function)(void*), std::string_view call, void* data);

  const int ordinal_;
  const std::string name_;
  const int capability_;  // 10 * major + minor
  const int num_multiprocessors_;
  DeviceCounterCells counter_cells_;
  PinnedRanges pinned_ranges_;
  std::atomic<int> num_live_{0};  // buffers, streams, events and graphs

  std::mutex clock_mutex_;
  ClockPings* clock_pings_pinned_ = nullptr;  // guarded by clock_mutex_
  cudaStream_t clock_stream_ = nullptr;       // guarded by clock_mutex_
};

}  // namespace gapless
