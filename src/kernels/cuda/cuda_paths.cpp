// Chooses the path of a device among those that this build has (path_choice.h).
#include <cuda_runtime.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "kernels/cuda/path_choice.h"
#include "kernels/dry_kernels.h"
#include "kernels/kernels.h"

// Of each path, what it gives (cuda_kernels.h).
#define GAPLESS_BUILT_PATH(path, value)                                                  \
  namespace gapless::cuda::path {                                                        \
  StatusOr<std::unique_ptr<Kernels>> make_kernels(Device& device,                        \
                                                  const CudaAttributes& attributes);     \
  StatusOr<std::unique_ptr<Kernels>> make_dry_kernels(Device& device,                    \
                                                      const CudaAttributes& attributes); \
  bool has_code();                                                                       \
  }
#include "built_paths.inc"
#undef GAPLESS_BUILT_PATH

namespace gapless {
namespace {

using MakeKernels = StatusOr<std::unique_ptr<Kernels>> (*)(Device&, const cuda::CudaAttributes&);

struct PathCode {
  cuda::CudaPath path;
  bool (*has_code)();
  MakeKernels make_kernels, make_dry_kernels;
};

#define GAPLESS_BUILT_PATH(path, value)                                 \
  PathCode{cuda::value, cuda::path::has_code, cuda::path::make_kernels, \
           cuda::path::make_dry_kernels},
constexpr PathCode kBuiltPaths[] = {
#include "built_paths.inc"
};
#undef GAPLESS_BUILT_PATH

// Of the device that is current.
Status read_attributes(cuda::CudaAttributes& attributes) {
  int ordinal = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&ordinal);
  const auto read = [&](int& to, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&to, attribute, ordinal);
  };
  read(major, cudaDevAttrComputeCapabilityMajor);
  read(minor, cudaDevAttrComputeCapabilityMinor);
  read(attributes.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  read(attributes.num_multiprocessors, cudaDevAttrMultiProcessorCount);
  attributes.capability = 10 * major + minor;
  if (error == cudaSuccess) return ok_status();
  return make_error(StatusCode::kDeviceError, "cudaDeviceGetAttribute: {}",
                    cudaGetErrorString(error));
}

}  // namespace

StatusOr<std::unique_ptr<Kernels>> make_cuda_kernels(Device& device) {
  if (device.kind() != DeviceKind::kCuda) {
    return make_error(StatusCode::kInvalidArgument, "CUDA kernels need a CUDA device");
  }
  // Makes the device the current one.
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.create_stream("path"));
  (void)stream->native_handle();
  cuda::CudaAttributes attributes;
  GAPLESS_RETURN_IF_ERROR(read_attributes(attributes));

  std::vector<cuda::BuiltPath> built;
  for (const PathCode& code : kBuiltPaths) built.push_back({code.path, code.has_code()});
  const char* wanted = std::getenv("GAPLESS_CUDA_PATH");
  GAPLESS_ASSIGN_OR_RETURN(const cuda::PathChoice choice,
                           cuda::choose_path(attributes, built, wanted == nullptr ? "" : wanted));
  attributes.shared_bytes = choice.shared_bytes;
  log_info("CUDA path {} with {} KB of shared memory a block, {} multiprocessors", choice.path.name,
           choice.shared_bytes >> 10, attributes.num_multiprocessors);
  for (const PathCode& code : kBuiltPaths) {
    if (std::string_view(code.path.name) == choice.path.name) {
      return code.make_kernels(device, attributes);
    }
  }
  return make_error(StatusCode::kInternal, "no code of path {}", choice.path.name);
}

// The paths' sizes are nearly the same: those of the best one in this build.
StatusOr<std::unique_ptr<Kernels>> make_dry_cuda_kernels(Device& device) {
  GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, device.info());
  for (const cuda::CudaPath& path : cuda::kCudaPaths) {
    for (const PathCode& code : kBuiltPaths) {
      if (std::string_view(code.path.name) != path.name) continue;
      return code.make_dry_kernels(device, {.capability = path.min_capability,
                                            .shared_bytes = cuda::kLargestSharedBytes,
                                            .num_multiprocessors = info.num_multiprocessors});
    }
  }
  return make_error(StatusCode::kInternal, "this build has no CUDA path");
}

}  // namespace gapless
