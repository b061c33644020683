// The kernel in front of a conditional node of a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace gapless {

// The condition is *flag_dev when the launch's turn comes.
cudaError_t launch_set_condition(cudaGraphConditionalHandle condition,
                                 const std::uint32_t* flag_dev, cudaStream_t stream);

}  // namespace gapless
