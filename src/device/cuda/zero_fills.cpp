#include "device/cuda/zero_fills.h"

#include <algorithm>
#include <vector>

#include "device/cuda/cuda_error.h"

namespace gapless {
namespace {

#define GAPLESS_CUDA_RETURN_IF_ERROR(call) GAPLESS_RETURN_IF_ERROR(cuda_status((call), #call))

using Nodes = std::vector<cudaGraphNode_t>;

Status add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
  const cudaGraphEdgeData whole = {};  // `to` starts when `from` is through
  return cuda_status(cudaGraphAddDependencies(graph, &from, &to, &whole, 1),
                     "cudaGraphAddDependencies");
}

// Whether all that the node does is to fill some of these bytes with zeros.
StatusOr<bool> only_fills_zeros(cudaGraphNode_t node, const std::byte* begin, std::size_t bytes) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphNodeGetType(node, &type));
  if (type != cudaGraphNodeTypeMemset) return false;
  cudaMemsetParams fill = {};
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphMemsetNodeGetParams(node, &fill));
  const auto* const first = static_cast<const std::byte*>(fill.dst);
  const std::size_t row_bytes = fill.width * fill.elementSize;
  const std::size_t filled = fill.height > 0 ? (fill.height - 1) * fill.pitch + row_bytes : 0;
  return fill.value == 0 && first >= begin && first + filled <= begin + bytes;
}

// Takes the node out of the graph.
Status bridge(cudaGraph_t graph, cudaGraphNode_t node) {
  std::size_t num_before = 0, num_behind = 0;
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &num_before));
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &num_behind));
  Nodes before(num_before), behind(num_behind);
  // Edges may carry data. It has to be asked for, or the calls fail.
  std::vector<cudaGraphEdgeData> edges(std::max(num_before, num_behind));
  GAPLESS_CUDA_RETURN_IF_ERROR(
      cudaGraphNodeGetDependencies(node, before.data(), edges.data(), &num_before));
  GAPLESS_CUDA_RETURN_IF_ERROR(
      cudaGraphNodeGetDependentNodes(node, behind.data(), edges.data(), &num_behind));
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphDestroyNode(node));
  for (cudaGraphNode_t from : before) {
    for (cudaGraphNode_t to : behind) GAPLESS_RETURN_IF_ERROR(add_edge(graph, from, to));
  }
  return ok_status();
}

}  // namespace

Status fill_zeros_first(cudaGraph_t graph, std::byte* begin, std::size_t bytes) {
  std::size_t count = 0;
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphGetNodes(graph, nullptr, &count));
  Nodes nodes(count);
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t node : nodes) {
    GAPLESS_ASSIGN_OR_RETURN(const bool leaves, only_fills_zeros(node, begin, bytes));
    if (leaves) GAPLESS_RETURN_IF_ERROR(bridge(graph, node));
  }

  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphGetRootNodes(graph, nullptr, &count));
  Nodes roots(count);
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphGetRootNodes(graph, roots.data(), &count));
  const cudaMemsetParams fill{
      .dst = begin, .pitch = bytes, .value = 0, .elementSize = 1, .width = bytes, .height = 1};
  cudaGraphNode_t first = nullptr;
  GAPLESS_CUDA_RETURN_IF_ERROR(cudaGraphAddMemsetNode(&first, graph, nullptr, 0, &fill));
  for (cudaGraphNode_t root : roots) GAPLESS_RETURN_IF_ERROR(add_edge(graph, first, root));
  return ok_status();
}

}  // namespace gapless
