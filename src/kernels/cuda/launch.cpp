#include "kernels/cuda/launch.h"

#include "device/cuda/cuda_error.h"

namespace gapless::cuda {

Status launch_status(cudaError_t error, const char* kernel_name) {
  if (error == cudaSuccess) return ok_status();
  return cuda_status(error, fmt::format("kernel {}", kernel_name));
}

}  // namespace gapless::cuda
