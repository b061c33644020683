// The device layer: memory, streams, events and graphs, the same for the CPU and for CUDA.
//
// Model:
//   Device   one accelerator (or the CPU acting as one). Everything it makes must die before it.
//   Stream   an ordered queue of work. Work on one stream runs in order; streams run side by side.
//   Event    a point in a stream. Other streams wait for it on the device, the host waits with
//            Event::synchronize.
//   Graph    a recorded piece of one stream's work that is replayed with one call.
//
// Errors: every call that reaches the device returns a Status that names the call. Work fails
// asynchronously: the first failure *poisons* the stream, later work on it is skipped, and the
// error comes back from Event::synchronize or Stream::synchronize. A stream that waits for an event
// of a poisoned stream is poisoned too. Poison does not wear off; on CUDA it covers the whole
// device.
//
// Counters: calls that may stall the device (allocation, pageable copy, host synchronisation) are
// counted, because in steady state the engine thread may make none of them but the one event wait
// per step (invariant I7).
//
// Threads: a Device may be used from several threads; a Stream, Event or Graph from one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace gapless {

enum class DeviceKind { kCpu, kCuda, kSimulated };

// Calls made since the device was opened, failed ones included.
struct DeviceCounters {
  std::int64_t allocations = 0;       // buffers, streams, events and graphs made
  std::int64_t pageable_copies = 0;   // copies from or to memory that is not pinned: all refused
  std::int64_t synchronizations = 0;  // Stream::synchronize, clock_offset_ns, memory freed
  std::int64_t event_waits = 0;       // Event::synchronize: the one wait that I7 allows

  std::int64_t forbidden_in_steady_state() const {
    return allocations + pageable_copies + synchronizations;
  }
};

class Device;

// Device memory. Move-only; returns its memory on destruction. An empty Buffer has data() ==
// nullptr.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, std::size_t size_bytes)
      : device_(device), data_(data), size_bytes_(size_bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Page-locked host memory: the only host memory that a stream copies from or to. Move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device* device, void* data, std::size_t size_bytes)
      : device_(device), data_(data), size_bytes_(size_bytes) {}
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PinnedBuffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(PinnedBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

class Event {
 public:
  virtual ~Event() = default;
  // True once the work before the last Stream::record of this event is done (or it was never
  // recorded).
  virtual StatusOr<bool> is_complete() = 0;
  // The host waits until then. Counted as an event wait.
  virtual Status synchronize() = 0;
  // The same, for timeout_ns at most. False: the work was not done by then.
  virtual StatusOr<bool> synchronize_within(std::int64_t timeout_ns) = 0;
};

class Graph {
 public:
  virtual ~Graph() = default;
};

class Stream {
 public:
  virtual ~Stream() = default;

  virtual std::string_view name() const = 0;

  // Copies; `*_pinned` must be this device's pinned memory (else InvalidArgument) and stay
  // untouched until the copy is done.
  virtual Status copy_to_device(void* to_dev, const void* from_pinned, std::size_t bytes) = 0;
  virtual Status copy_to_host(void* to_pinned, const void* from_dev, std::size_t bytes) = 0;
  virtual Status copy_on_device(void* to_dev, const void* from_dev, std::size_t bytes) = 0;
  virtual Status fill_bytes(void* to_dev, std::uint8_t value, std::size_t bytes) = 0;

  virtual Status record(Event& event) = 0;
  // This stream, not the host, waits for the event.
  virtual Status wait(Event& event) = 0;

  // Between the two calls work is recorded, not run. Captured work may not record or wait for
  // events.
  virtual Status begin_capture() = 0;
  virtual StatusOr<std::unique_ptr<Graph>> end_capture() = 0;
  virtual Status launch(Graph& graph) = 0;

  // Work between the two is left out, at each launch of the graph that captures it, where *flag_dev is 0 when its
  // turn comes. Outside of a capture it may run whatever the flag says, because CUDA leaves out work of graphs alone.
  // So it must do no harm where the flag is 0. Not nested; a capture does not end between the two.
  virtual Status begin_if(const std::uint32_t* flag_dev) = 0;
  virtual Status end_if() = 0;

  // In a capture, work between begin_branch and end_branch may run beside the work from there to join_branch: both follow what
  // came before, and what comes behind follows both. So neither may write what the other reads or writes. Elsewhere all of it runs
  // in order. Not nested; a condition or a capture does not begin or end inside.
  virtual Status begin_branch() { return ok_status(); }
  virtual Status end_branch() { return ok_status(); }
  virtual Status join_branch() { return ok_status(); }

  // For a library whose kernels count in memory that it fills with zeros before each of them: a fill costs a chain of kernels 2 to 3 us.
  // In a capture, the next `bytes` of `arena` that it has not taken yet. The graph fills what was taken with zeros before everything
  // else, and leaves out what would fill some of it with zeros later. So nobody may write there before that. nullptr where
  // fills stay as they are: outside of a capture, in a condition, where the arena is used up or not the one that the capture
  // took from before, and on a CPU.
  virtual void* take_zeros(const Buffer& /*arena*/, std::size_t /*bytes*/) { return nullptr; }

  // The host waits for everything enqueued so far. Start-up, shutdown and tests only: counted.
  virtual Status synchronize() = 0;

  // For kernels/: the cudaStream_t of a CUDA stream; the CpuStream itself on the CPU.
  virtual void* native_handle() = 0;
};

struct DeviceInfo {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;  // "NVIDIA H200", "CPU"
  std::size_t total_memory_bytes = 0;
  std::size_t free_memory_bytes = 0;
  int num_multiprocessors = 0;  // 0 on the CPU
};

class Device {
 public:
  virtual ~Device() = default;

  virtual StatusOr<DeviceInfo> info() = 0;
  virtual DeviceKind kind() const = 0;

  // 256-byte aligned, uninitialised. ResourceExhausted when there is not enough. Counted.
  virtual StatusOr<Buffer> allocate(std::size_t bytes) = 0;
  virtual StatusOr<PinnedBuffer> allocate_pinned(std::size_t bytes) = 0;

  virtual StatusOr<std::unique_ptr<Stream>> create_stream(std::string_view name) = 0;
  virtual StatusOr<std::unique_ptr<Event>> create_event() = 0;

  // host_now_ns() minus the clock that stamps device time (kernels.h, stamp_time), measured now.
  virtual StatusOr<std::int64_t> clock_offset_ns() = 0;

  virtual DeviceCounters counters() const = 0;

 protected:
  friend class Buffer;
  friend class PinnedBuffer;
  virtual void free_device(void* data) = 0;
  virtual void free_pinned(void* data) = 0;
};

// "cpu", "cuda" or "cuda:N". Unavailable, saying why, when this build or this machine has no CUDA.
StatusOr<std::unique_ptr<Device>> open_device(std::string_view name);

// device/cuda or, where the toolkit was absent at build time, device/no_cuda.
StatusOr<std::unique_ptr<Device>> open_cuda_device(int ordinal);
std::unique_ptr<Device> open_cpu_device();

}  // namespace gapless
