#include "device/cuda_support.h"

#include <fmt/format.h>

namespace gapless {

Status check_cuda_capability(std::string_view gpu, int capability) {
  if (capability >= kOldestCudaCapability) return ok_status();
  return make_error(
      StatusCode::kUnavailable,
      "{} has compute capability {}.{}; gapless needs {}.{} or newer (A100, RTX 30 and later), or "
      "--device cpu",
      gpu, capability / 10, capability % 10, kOldestCudaCapability / 10,
      kOldestCudaCapability % 10);
}

std::string driver_too_old(int driver_version, int needed_version) {
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  if (driver_version == 0) {
    return fmt::format("there is no NVIDIA driver; this build needs one for CUDA {} or newer",
                       version(needed_version));
  }
  return fmt::format(
      "the NVIDIA driver is for CUDA {}, this build needs one for {} or newer: update the driver, "
      "or build "
      "gapless with the toolkit of that CUDA (12.8 or newer)",
      version(driver_version), version(needed_version));
}

std::string no_cuda_code(std::string_view gpu, int capability) {
  return fmt::format(
      "this build holds no code for {} (compute capability {}.{}): build it with "
      "-DGAPLESS_CUDA_ARCHITECTURES=native on a machine that has one, or =all",
      gpu, capability / 10, capability % 10);
}

}  // namespace gapless
