#include "device/cuda/set_condition.h"

namespace gapless {
namespace {

__global__ void set_condition(cudaGraphConditionalHandle condition, const std::uint32_t* flag) {
  cudaGraphSetConditional(condition, *flag);
}

}  // namespace

cudaError_t launch_set_condition(cudaGraphConditionalHandle condition,
                                 const std::uint32_t* flag_dev, cudaStream_t stream) {
  set_condition<<<1, 1, 0, stream>>>(condition, flag_dev);
  return cudaGetLastError();
}

}  // namespace gapless
