#include "kernels/cuda/launch.h"

namespace gapless::cuda {

Status launch_status(cudaError_t error, const char* kernel_name) {
  if (error == cudaSuccess) return ok_status();
  return make_error(StatusCode::kDeviceError, "CUDA kernel {}: {} ({})", kernel_name,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace gapless::cuda
