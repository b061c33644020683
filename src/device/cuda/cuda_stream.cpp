#include "device/cuda/cuda_stream.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/set_condition.h"
#include "device/cuda/zero_fills.h"

namespace gapless {
namespace {

// A sleeping thread takes tens of microseconds to wake, in a virtual machine hundreds. Steps are
// waited for awake: the longest, an encode of many crops or a prefill of thousands of tokens, take
// this long.
constexpr std::int64_t kSpinNs = 30'000'000;
// Between two looks at a step that takes longer: a thousandth of it.
constexpr std::chrono::microseconds kNap{30};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// For destructors, which have nobody to tell.
void log_if_error(cudaError_t error, std::string_view call) {
  const Status status = cuda_status(error, call);
  if (!status.ok() && !is_sticky(error)) log_error("{}", status.to_string());
}

}  // namespace

CudaEvent::CudaEvent(CudaDevice& device, cudaEvent_t event) : device_(device), event_(event) {
  ++device_.num_live_;
}

CudaEvent::~CudaEvent() {
  (void)device_.make_current();
  log_if_error(cudaEventDestroy(event_), "cudaEventDestroy");
  --device_.num_live_;
}

StatusOr<bool> CudaEvent::is_complete() {
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  GAPLESS_RETURN_IF_ERROR(cuda_status(error, "cudaEventQuery"));
  return true;
}

Status CudaEvent::synchronize() {
  count(device_.counter_cells_.event_waits);
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  const std::int64_t deadline_ns = host_now_ns() + kSpinNs;
  do {
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaErrorNotReady) return cuda_status(error, "cudaEventQuery");
    pause_briefly();
  } while (host_now_ns() < deadline_ns);
  return cuda_status(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

StatusOr<bool> CudaEvent::synchronize_within(std::int64_t timeout_ns) {
  count(device_.counter_cells_.event_waits);
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  const std::int64_t begin_ns = host_now_ns();
  while (true) {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaSuccess) return true;
    if (error != cudaErrorNotReady) return cuda_status(error, "cudaEventQuery");
    const std::int64_t waited_ns = host_now_ns() - begin_ns;
    if (waited_ns >= timeout_ns) return false;
    if (waited_ns < kSpinNs) {
      pause_briefly();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

CudaGraph::CudaGraph(CudaDevice& device, cudaGraphExec_t graph) : device_(device), graph_(graph) {
  ++device_.num_live_;
}

CudaGraph::~CudaGraph() {
  (void)device_.make_current();
  log_if_error(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy");
  --device_.num_live_;
}

CudaStream::CudaStream(CudaDevice& device, std::string_view name, cudaStream_t stream)
    : device_(device), name_(name), stream_(stream) {
  ++device_.num_live_;
}

CudaStream::~CudaStream() {
  (void)device_.make_current();
  if (in_if_) (void)end_if();
  if (capturing_) (void)end_capture();
  // Errors of the queued work belong to whoever waits for it.
  (void)cudaStreamSynchronize(stream_);
  log_if_error(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  --device_.num_live_;
}

Status CudaStream::check(cudaError_t error, std::string_view call) const {
  if (error == cudaSuccess) return ok_status();
  return cuda_status(error, call).with_context(fmt::format("stream {}", name_));
}

Status CudaStream::check_pinned(std::string_view call, const void* data, std::size_t bytes) const {
  if (device_.pinned_ranges_.contains(data, bytes)) return ok_status();
  count(device_.counter_cells_.pageable_copies);
  return invalid_argument("stream {}: {}: host memory is not pinned", name_, call);
}

Status CudaStream::refuse_during_capture(std::string_view call) const {
  if (!capturing_) return ok_status();
  return invalid_argument("stream {}: {} during a capture", name_, call);
}

StatusOr<CudaEvent*> CudaStream::own_event(Event& event) const {
  auto* const cuda_event = dynamic_cast<CudaEvent*>(&event);
  if (cuda_event == nullptr || &cuda_event->device_ != &device_) {
    return invalid_argument("stream {}: event of another device", name_);
  }
  return cuda_event;
}

Status CudaStream::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  return check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
}

Status CudaStream::copy_to_device(void* to_dev, const void* from_pinned, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(check_pinned("copy_to_device", from_pinned, bytes));
  return copy(to_dev, from_pinned, bytes, cudaMemcpyHostToDevice);
}

Status CudaStream::copy_to_host(void* to_pinned, const void* from_dev, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(check_pinned("copy_to_host", to_pinned, bytes));
  return copy(to_pinned, from_dev, bytes, cudaMemcpyDeviceToHost);
}

Status CudaStream::copy_on_device(void* to_dev, const void* from_dev, std::size_t bytes) {
  return copy(to_dev, from_dev, bytes, cudaMemcpyDeviceToDevice);
}

Status CudaStream::fill_bytes(void* to_dev, std::uint8_t value, std::size_t bytes) {
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  return check(cudaMemsetAsync(to_dev, value, bytes, stream_), "cudaMemsetAsync");
}

Status CudaStream::record(Event& event) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("record"));
  GAPLESS_ASSIGN_OR_RETURN(CudaEvent* const cuda_event, own_event(event));
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  return check(cudaEventRecord(cuda_event->event_, stream_), "cudaEventRecord");
}

Status CudaStream::wait(Event& event) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("wait"));
  GAPLESS_ASSIGN_OR_RETURN(CudaEvent* const cuda_event, own_event(event));
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  return check(cudaStreamWaitEvent(stream_, cuda_event->event_, 0), "cudaStreamWaitEvent");
}

Status CudaStream::begin_capture() {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("begin_capture"));
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  GAPLESS_RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                                "cudaStreamBeginCapture"));
  capturing_ = true;
  zeros_ = nullptr;
  zeros_taken_ = 0;
  return ok_status();
}

StatusOr<std::unique_ptr<Graph>> CudaStream::end_capture() {
  if (!capturing_) return invalid_argument("stream {}: end_capture without a capture", name_);
  if (in_if_) return invalid_argument("stream {}: end_capture before end_if", name_);
  capturing_ = false;
  count(device_.counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  cudaGraph_t recorded = nullptr;
  GAPLESS_RETURN_IF_ERROR(check(cudaStreamEndCapture(stream_, &recorded), "cudaStreamEndCapture"));
  const Status zeros_first =
      zeros_ != nullptr ? fill_zeros_first(recorded, zeros_, zeros_taken_) : ok_status();
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated =
      zeros_first.ok() ? cudaGraphInstantiate(&executable, recorded, 0) : cudaSuccess;
  log_if_error(cudaGraphDestroy(recorded), "cudaGraphDestroy");
  GAPLESS_RETURN_IF_ERROR(zeros_first);
  GAPLESS_RETURN_IF_ERROR(check(instantiated, "cudaGraphInstantiate"));
  auto graph = std::make_unique<CudaGraph>(device_, executable);
  // So that the first launch costs what the others do.
  GAPLESS_RETURN_IF_ERROR(check(cudaGraphUpload(executable, stream_), "cudaGraphUpload"));
  return std::unique_ptr<Graph>(std::move(graph));
}

Status CudaStream::launch(Graph& graph) {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("launch"));
  auto* const cuda_graph = dynamic_cast<CudaGraph*>(&graph);
  if (cuda_graph == nullptr || &cuda_graph->device_ != &device_) {
    return invalid_argument("stream {}: graph of another device", name_);
  }
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  return check(cudaGraphLaunch(cuda_graph->graph_, stream_), "cudaGraphLaunch");
}

StatusOr<CudaStream::CapturePoint> CudaStream::capture_point() const {
  CapturePoint point;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  GAPLESS_RETURN_IF_ERROR(check(
      cudaStreamGetCaptureInfo(stream_, &status, nullptr, &point.graph, &nodes, &edges, &count),
      "cudaStreamGetCaptureInfo"));
  if (status != cudaStreamCaptureStatusActive) {
    return make_error(StatusCode::kDeviceError, "stream {}: the capture has failed", name_);
  }
  point.nodes.assign(nodes, nodes + count);
  point.edges.resize(count);
  if (edges != nullptr) point.edges.assign(edges, edges + count);
  return point;
}

Status CudaStream::capture_into(cudaGraph_t graph, const cudaGraphNode_t* after) {
  return check(cudaStreamBeginCaptureToGraph(stream_, graph, after, nullptr, after != nullptr,
                                             cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCaptureToGraph");
}

Status CudaStream::begin_if(const std::uint32_t* flag_dev) {
  if (in_if_) return invalid_argument("stream {}: begin_if before end_if", name_);
  in_if_ = true;
  if (!capturing_) return ok_status();
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  GAPLESS_ASSIGN_OR_RETURN(CapturePoint point, capture_point());
  cudaGraphConditionalHandle condition = 0;
  GAPLESS_RETURN_IF_ERROR(check(cudaGraphConditionalHandleCreate(&condition, point.graph),
                                "cudaGraphConditionalHandleCreate"));
  GAPLESS_RETURN_IF_ERROR(
      check(launch_set_condition(condition, flag_dev, stream_), "set_condition"));
  GAPLESS_ASSIGN_OR_RETURN(point, capture_point());
  cudaGraphNodeParams node = {};
  node.type = cudaGraphNodeTypeConditional;
  node.conditional.handle = condition;
  node.conditional.type = cudaGraphCondTypeIf;
  node.conditional.size = 1;
  // The stream goes on in the body, so it leaves the graph around it for a while.
  GAPLESS_RETURN_IF_ERROR(check(cudaStreamEndCapture(stream_, &outer_), "cudaStreamEndCapture"));
  GAPLESS_RETURN_IF_ERROR(check(cudaGraphAddNode(&if_node_, outer_, point.nodes.data(),
                                                 point.edges.data(), point.nodes.size(), &node),
                                "cudaGraphAddNode"));
  return capture_into(node.conditional.phGraph_out[0], nullptr);
}

Status CudaStream::end_if() {
  if (!in_if_) return invalid_argument("stream {}: end_if without begin_if", name_);
  in_if_ = false;
  if (!capturing_) return ok_status();
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  cudaGraph_t body = nullptr;
  GAPLESS_RETURN_IF_ERROR(check(cudaStreamEndCapture(stream_, &body), "cudaStreamEndCapture"));
  return capture_into(outer_, &if_node_);
}

Status CudaStream::go_on_from(CapturePoint& point) {
  return check(
      cudaStreamUpdateCaptureDependencies(stream_, point.nodes.data(), point.edges.data(),
                                          point.nodes.size(), cudaStreamSetCaptureDependencies),
      "cudaStreamUpdateCaptureDependencies");
}

Status CudaStream::begin_branch() {
  if (!capturing_) return ok_status();
  if (branch_begin_ || branch_end_) {
    return invalid_argument("stream {}: begin_branch before join_branch", name_);
  }
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  GAPLESS_ASSIGN_OR_RETURN(branch_begin_, capture_point());
  return ok_status();
}

Status CudaStream::end_branch() {
  if (!capturing_) return ok_status();
  if (!branch_begin_) return invalid_argument("stream {}: end_branch without a branch", name_);
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  GAPLESS_ASSIGN_OR_RETURN(branch_end_, capture_point());
  CapturePoint begin = *std::exchange(branch_begin_, std::nullopt);
  return go_on_from(begin);
}

Status CudaStream::join_branch() {
  if (!capturing_) return ok_status();
  if (!branch_end_) return invalid_argument("stream {}: join_branch without a branch", name_);
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  GAPLESS_ASSIGN_OR_RETURN(CapturePoint both, capture_point());
  const CapturePoint branch = *std::exchange(branch_end_, std::nullopt);
  for (std::size_t i = 0; i < branch.nodes.size(); ++i) {
    // The same where nothing was enqueued.
    if (std::ranges::find(both.nodes, branch.nodes[i]) != both.nodes.end()) continue;
    both.nodes.push_back(branch.nodes[i]);
    both.edges.push_back(branch.edges[i]);
  }
  return go_on_from(both);
}

void* CudaStream::take_zeros(const Buffer& arena, std::size_t bytes) {
  auto* const begin = static_cast<std::byte*>(arena.data());
  if (!capturing_ || in_if_ || (zeros_ != nullptr && zeros_ != begin)) return nullptr;
  if (bytes > arena.size_bytes() - zeros_taken_) return nullptr;
  zeros_ = begin;
  zeros_taken_ += bytes;
  return begin + zeros_taken_ - bytes;
}

Status CudaStream::synchronize() {
  GAPLESS_RETURN_IF_ERROR(refuse_during_capture("synchronize"));
  count(device_.counter_cells_.synchronizations);
  GAPLESS_RETURN_IF_ERROR(device_.make_current());
  return check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void* CudaStream::native_handle() {
  // A failure comes back from the launch that follows.
  (void)device_.make_current();
  return stream_;
}

}  // namespace gapless
