// Which path a device runs. Host only, so that it is tested without a GPU.
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"
#include "kernels/cuda/cuda_path.h"

namespace gapless::cuda {

// What a device says of itself, or what GAPLESS_CUDA_PATH lets it be.
struct CudaAttributes {
  int capability = 0;    // 10 * major + minor
  int shared_bytes = 0;  // of a block, at most
  int num_multiprocessors = 0;
};

struct BuiltPath {
  CudaPath path;
  bool has_code;  // the build holds machine code or PTX of it that this device runs
};

struct PathChoice {
  CudaPath path;
  // How much of the device's shared memory a block may take.
  int shared_bytes = 0;
};

// The best of the built paths that the device runs. `wanted`: the value of GAPLESS_CUDA_PATH, which
// lets a newer device run a lower path so that it can be tested: "" (the best), "8.0", "8.6" (8.0 with the 99 KB of
// such a device), "8.9", "9.0", "9.0a" or "12.0" (9.0 with 99 KB). Invalid argument for another value; unavailable, with
// what is needed, where the device is too old or the build holds nothing for it.
StatusOr<PathChoice> choose_path(const CudaAttributes& device, std::span<const BuiltPath> built,
                                 std::string_view wanted);

}  // namespace gapless::cuda
