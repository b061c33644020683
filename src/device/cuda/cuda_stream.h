// Streams, events and graphs of the CUDA device.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/device.h"

namespace gapless {

// Without timing: the device stamps its own times.
class CudaEvent : public Event {
 public:
  // Takes over `event`.
  CudaEvent(CudaDevice& device, cudaEvent_t event);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  StatusOr<bool> is_complete() override;
  // Spins for about as long as a decode step lasts, then lets the thread sleep.
  Status synchronize() override;
  // Spins as long, then looks again after short naps: CUDA's own wait has no time limit.
  StatusOr<bool> synchronize_within(std::int64_t timeout_ns) override;

 private:
  friend class CudaStream;
  CudaDevice& device_;
  const cudaEvent_t event_;
};

class CudaGraph : public Graph {
 public:
  // Takes over `graph`.
  CudaGraph(CudaDevice& device, cudaGraphExec_t graph);
  // A launch that still runs is not disturbed.
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

 private:
  friend class CudaStream;
  CudaDevice& device_;
  const cudaGraphExec_t graph_;
};

class CudaStream : public Stream {
 public:
  // Takes over `stream`.
  CudaStream(CudaDevice& device, std::string_view name, cudaStream_t stream);
  // Waits for what is queued.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

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
  // In a capture a conditional node, whose body is captured in place of the graph.
  Status begin_if(const std::uint32_t* flag_dev) override;
  Status end_if() override;
  // No stream of its own: only what the next piece of captured work follows is set.
  Status begin_branch() override;
  Status end_branch() override;
  Status join_branch() override;
  void* take_zeros(const Buffer& arena, std::size_t bytes) override;
  Status synchronize() override;
  // Makes the stream's device current for the calling thread, so that a kernel may be launched.
  void* native_handle() override;

 private:
  // OK, or the error with the stream's name.
  Status check(cudaError_t error, std::string_view call) const;
  Status check_pinned(std::string_view call, const void* data, std::size_t bytes) const;
  Status refuse_during_capture(std::string_view call) const;
  // InvalidArgument for an event of another device.
  StatusOr<CudaEvent*> own_event(Event& event) const;
  // Of the capture under way: its graph, and what the next piece of work will follow.
  struct CapturePoint {
    cudaGraph_t graph = nullptr;
    std::vector<cudaGraphNode_t> nodes;
    std::vector<cudaGraphEdgeData> edges;  // from each of them
  };
  StatusOr<CapturePoint> capture_point() const;
  Status go_on_from(CapturePoint& point);
  Status capture_into(cudaGraph_t graph, const cudaGraphNode_t* after);
  Status copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);

  CudaDevice& device_;
  const std::string name_;
  const cudaStream_t stream_;
  bool capturing_ = false;
  bool in_if_ = false;
  // While the body of a conditional node is captured: the graph around it, and the node.
  cudaGraph_t outer_ = nullptr;
  cudaGraphNode_t if_node_ = nullptr;
  std::optional<CapturePoint> branch_begin_,
      branch_end_;  // of a branch that is open, or to be joined
  // Of the capture under way: what it took zeros from, and how much.
  std::byte* zeros_ = nullptr;
  std::size_t zeros_taken_ = 0;
};

}  // namespace gapless
