// Streams, events and graphs of the CPU device. Asynchronous on purpose: a stream is a thread with
// a queue, so that ThreadSanitizer finds a buffer reused too early on any machine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/mutex.h"
#include "device/device.h"

namespace gapless {

class CpuDevice;

// A piece of work: runs on the stream's thread. A failure poisons the stream. It must not own a
// Buffer, and it may run many times when it was captured.
using CpuOp = std::function<Status()>;

// One place in one stream's order: reached once, with the stream's state at that place.
class CpuPoint {
 public:
  void reach(const Status& state);
  bool is_reached();
  // Blocks until reached; the state of the stream there.
  Status wait();
  // False: not reached within timeout_ns. Time in which the process is stopped counts an eighth at most, each time.
  bool wait_for(std::int64_t timeout_ns);

 private:
  Mutex mutex_;
  ConditionVariable reached_changed_;
  bool reached_ GAPLESS_GUARDED_BY(mutex_) = false;
  Status state_ GAPLESS_GUARDED_BY(mutex_);
};

// Holds the point of its latest record. A wait keeps the point that was the latest when the wait
// was called, so recording again does not move earlier waits, and destroying the event disturbs
// nobody.
class CpuEvent : public Event {
 public:
  explicit CpuEvent(CpuDevice& device);
  ~CpuEvent() override;
  CpuEvent(const CpuEvent&) = delete;
  CpuEvent& operator=(const CpuEvent&) = delete;

  StatusOr<bool> is_complete() override;
  Status synchronize() override;
  StatusOr<bool> synchronize_within(std::int64_t timeout_ns) override;

 private:
  friend class CpuStream;
  CpuDevice& device_;
  std::shared_ptr<CpuPoint> latest_;  // null: never recorded
};

class CpuGraph : public Graph {
 public:
  CpuGraph(CpuDevice& device, std::vector<CpuOp> ops);
  ~CpuGraph() override;
  CpuGraph(const CpuGraph&) = delete;
  CpuGraph& operator=(const CpuGraph&) = delete;

 private:
  friend class CpuStream;
  CpuDevice& device_;
  std::shared_ptr<const std::vector<CpuOp>> ops_;  // shared with launches that are still queued
};

class CpuStream : public Stream {
 public:
  CpuStream(CpuDevice& device, std::string_view name);
  // Runs what is queued, then stops the thread.
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  // For kernels/cpu: runs `op` after everything enqueued before, or records it during a capture.
  // Blocks only when kMaxQueuedCpuOps are waiting.
  Status enqueue(CpuOp op);

  std::string_view name() const override { return name_; }
  Status copy_to_device(void* to_dev, const void* from_pinned, std::size_t bytes) override;
  Status copy_to_host(void* to_pinned, const void* from_dev, std::size_t bytes) override;
  Status copy_on_device(void* to_dev, const void* from_dev, std::size_t bytes) override;
  Status fill_bytes(void* to_dev, std::uint8_t value, std::size_t bytes) override;
  Status record(Event& event) override;
  Status wait(Event& event) override;
  Status begin_capture() override;
  StatusOr<std::unique_ptr<Graph>> end_capture() override;
  Status launch(Graph& graph) override;
  Status synchronize() override;
  // The flag is looked at outside of captures too.
  Status begin_if(const std::uint32_t* flag_dev) override;
  Status end_if() override;
  void* native_handle() override { return this; }

 private:
  friend class CpuDevice;
  // Reads and may set the stream's state: not OK once poisoned.
  using Item = std::function<void(Status& state)>;

  void run();
  void push(Item item);
  // Waits for what is queued now. Any thread but the stream's own.
  Status drain();
  Status refuse_during_capture(std::string_view call) const;
  Status check_pinned(std::string_view call, const void* data, std::size_t bytes) const;

  CpuDevice& device_;
  const std::string name_;
  bool capturing_ = false;
  std::vector<CpuOp> captured_;
  const std::uint32_t* flag_ = nullptr;  // begin_if's; nullptr: none
  BoundedQueue<Item> queue_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace gapless
