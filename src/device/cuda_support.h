// What a GPU and its driver must be, and the sentences for those that are not. No CUDA in here, so that it is tested
// without a GPU.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

// 10 * major + minor of the compute capability.
inline constexpr int kOldestCudaCapability = 80;

// OK, or unavailable with what is needed.
Status check_cuda_capability(std::string_view gpu, int capability);
// Versions as CUDA counts them: 1000 * major + 10 * minor. 0: there is no driver.
std::string driver_too_old(int driver_version, int needed_version);
// The build holds nothing that the GPU runs.
std::string no_cuda_code(std::string_view gpu, int capability);

}  // namespace gapless
