// CUDA errors as Status. For device/cuda and kernels/cuda only.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/status.h"

namespace gapless {

// OK, or an error that names the call: "cudaMalloc (4096 bytes): out of memory". Out of memory is
// ResourceExhausted; the rest is DeviceError, and says so when the device is lost to this process.
// Takes the error off the runtime's list, so that a later launch check does not see it again.
Status cuda_status(cudaError_t error, std::string_view call);

// True for the errors after which every further CUDA call of the process fails.
bool is_sticky(cudaError_t error);

}  // namespace gapless
