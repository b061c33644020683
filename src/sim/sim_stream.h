// Streams, events and graphs of the simulated device.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/sim_device.h"

namespace gapless {

// A scripted kernel. An effect reads and writes memory and calls nothing of the device but
// device_clock_ns(). A kernel that is strict about its inputs reads them in on_begin.
struct SimKernel {
  std::int64_t duration_ns = 0;
  std::function<void()> on_begin = {};
  std::function<void()> on_end = {};
  std::string_view label = "kernel";  // outlives the device: a literal
};

class SimEvent : public Event {
 public:
  explicit SimEvent(SimDevice& device);
  ~SimEvent() override;
  SimEvent(const SimEvent&) = delete;
  SimEvent& operator=(const SimEvent&) = delete;

  StatusOr<bool> is_complete() override;
  Status synchronize() override;
  StatusOr<bool> synchronize_within(std::int64_t timeout_ns) override;

  // Virtual time of the latest record; 0 when never recorded.
  std::int64_t time_ns() const { return time_ns_; }

 private:
  friend class SimStream;
  SimDevice& device_;
  std::int64_t time_ns_ = 0;
  Status state_;  // of the stream at the record
};

// A kernel, a copy or a fill.
struct SimOp {
  enum class Kind : std::uint8_t { kKernel, kCopyFromHost, kCopy, kFill };
  Kind kind = Kind::kKernel;
  std::uint8_t fill_value = 0;
  std::int64_t duration_ns = 0;
  std::string_view label;
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
  std::function<void()> on_begin;
  std::function<void()> on_end;
  const std::uint32_t* flag = nullptr;  // begin_if's
};

class SimGraph : public Graph {
 public:
  SimGraph(SimDevice& device, std::vector<SimOp> ops);
  ~SimGraph() override;
  SimGraph(const SimGraph&) = delete;
  SimGraph& operator=(const SimGraph&) = delete;

 private:
  friend class SimStream;
  SimDevice& device_;
  std::shared_ptr<const std::vector<SimOp>> ops_;  // shared with launches that have yet to run
};

class SimStream : public Stream {
 public:
  SimStream(SimDevice& device, std::string_view name, std::vector<SimInterval>* timeline);
  // Waits for what is queued.
  ~SimStream() override;
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  // The stream behind a Stream of a SimDevice.
  static SimStream& of(Stream& stream) { return *static_cast<SimStream*>(stream.native_handle()); }

  Status enqueue_kernel(SimKernel kernel);
  // The effect happens when the kernel ends.
  Status enqueue_kernel(std::int64_t duration_ns, std::function<void()> effect,
                        std::string_view label);
  SimDevice& device() { return device_; }

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
  // What is left out takes its time all the same: when work ends is settled when it is enqueued.
  Status begin_if(const std::uint32_t* flag_dev) override;
  Status end_if() override;
  Status synchronize() override;
  void* native_handle() override { return this; }

 private:
  friend class SimDevice;

  // An effect that has yet to happen. Those of one stream are in order of time.
  struct Pending {
    std::int64_t time_ns = 0;
    std::uint64_t order = 0;
    bool is_begin = false;
    std::uint64_t source_hash = 0;  // kCopyFromHost: of the source when it was enqueued
    std::shared_ptr<const SimOp> op;
  };

  Status enqueue(SimOp op);
  void schedule(std::shared_ptr<const SimOp> op);
  void run_first_pending();
  void begin_copy(const Pending& pending);
  void end_copy(const SimOp& op);
  Status check_pinned(SimCall call, const void* data, std::size_t bytes) const;
  Status refuse_during_capture(SimCall call) const;

  SimDevice& device_;
  const std::string name_;
  std::vector<SimInterval>* const timeline_;  // null: not recorded
  std::int64_t tail_ns_ = 0;  // when the work enqueued so far ends and its waits are over
  Status state_;              // not OK: what is enqueued from here on is skipped
  std::deque<Pending> pending_;
  std::uint64_t copy_hash_ = 0;  // of the source of the copy that is under way
  bool capturing_ = false;
  std::vector<SimOp> captured_;
  const std::uint32_t* flag_ = nullptr;  // begin_if's; nullptr: none
};

}  // namespace gapless
