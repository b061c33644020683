#include "kernels/cuda/launch.h"

#include "device/cuda/cuda_error.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

Status launch_status(cudaError_t error, const char* kernel_name) {
  if (error == cudaSuccess) return ok_status();
  return cuda_status(error, fmt::format("kernel {}", kernel_name));
}

Status check_registers(const char* kernel_name, const void* kernel, int expected) {
  cudaFuncAttributes attributes;
  GAPLESS_RETURN_IF_ERROR(launch_status(cudaFuncGetAttributes(&attributes, kernel), kernel_name));
  // A thread has a multiple of 8.
  if ((attributes.numRegs + 7) / 8 * 8 >= expected) return ok_status();
  return make_error(StatusCode::kInternal,
                    "{}: compiled to {} registers a thread, it reckons with {}", kernel_name,
                    attributes.numRegs, expected);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
