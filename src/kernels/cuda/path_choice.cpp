#include "kernels/cuda/path_choice.h"

#include <algorithm>
#include <string>

#include "device/cuda_support.h"

namespace gapless::cuda {
namespace {

struct WantedPath {
  std::string_view value, path;
  int shared_bytes;
};
constexpr WantedPath kWantedPaths[] = {
    {"8.0", "8.0", 163 << 10},
    {"8.6", "8.0", kSmallestSharedBytes},
    {"8.9", "8.9", kSmallestSharedBytes},
    {"9.0", "9.0", kLargestSharedBytes},
    {"9.0a", "9.0a", kLargestSharedBytes},
    {"12.0", "9.0", kSmallestSharedBytes},
    {"9.0s", "9.0", 163 << 10},
    {"8.0l", "8.0", kLargestSharedBytes},
};

std::string names_of(std::span<const BuiltPath> built) {
  std::string names;
  for (const BuiltPath& candidate : built) {
    if (!names.empty()) names += ", ";
    names += candidate.path.name;
  }
  return names;
}

bool runs(const CudaAttributes& device, const BuiltPath& candidate) {
  return candidate.has_code && device.capability >= candidate.path.min_capability &&
         device.capability <= candidate.path.max_capability;
}

}  // namespace

StatusOr<PathChoice> choose_path(const CudaAttributes& device, std::span<const BuiltPath> built,
                                 std::string_view wanted) {
  GAPLESS_RETURN_IF_ERROR(check_cuda_capability("this GPU", device.capability));
  if (device.shared_bytes < kSmallestSharedBytes) {
    return make_error(StatusCode::kUnavailable,
                      "this GPU gives a block {} KB of shared memory, gapless needs {}",
                      device.shared_bytes >> 10, kSmallestSharedBytes >> 10);
  }
  std::string_view path;
  int shared_bytes = device.shared_bytes;
  if (!wanted.empty()) {
    const auto* found = std::find_if(std::begin(kWantedPaths), std::end(kWantedPaths),
                                     [&](const WantedPath& w) { return w.value == wanted; });
    if (found == std::end(kWantedPaths)) {
      return invalid_argument("GAPLESS_CUDA_PATH={} is none of 8.0, 8.6, 8.9, 9.0, 9.0a and 12.0",
                              wanted);
    }
    path = found->path;
    shared_bytes = std::min(shared_bytes, found->shared_bytes);
  }
  for (const CudaPath& candidate : kCudaPaths) {
    if (!path.empty() && path != candidate.name) continue;
    const auto found = std::find_if(built.begin(), built.end(), [&](const BuiltPath& b) {
      return std::string_view(b.path.name) == candidate.name && runs(device, b);
    });
    if (found == built.end()) continue;
    if (found->path.has_warpgroups && shared_bytes < kLargestSharedBytes) continue;
    return PathChoice{.path = found->path, .shared_bytes = shared_bytes};
  }
  return make_error(StatusCode::kUnavailable,
                    "this build has no kernels{}{} for a GPU of compute capability {}.{} (it has "
                    "paths {}): build it with "
                    "-DGAPLESS_CUDA_ARCHITECTURES=all, or where the GPU is",
                    path.empty() ? "" : " of path ", path, device.capability / 10,
                    device.capability % 10, names_of(built));
}

}  // namespace gapless::cuda
