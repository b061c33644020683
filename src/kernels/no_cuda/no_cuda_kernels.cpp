// Stands in for kernels/cuda where the CUDA toolkit was absent at build time.
#include "kernels/dry_kernels.h"
#include "kernels/kernels.h"

namespace gapless {

StatusOr<std::unique_ptr<Kernels>> make_cuda_kernels(Device&) {
  return make_error(StatusCode::kUnavailable, "this build has no CUDA kernels");
}

StatusOr<std::unique_ptr<Kernels>> make_dry_cuda_kernels(Device&) {
  return make_error(StatusCode::kUnavailable, "this build has no CUDA kernels");
}

}  // namespace gapless
