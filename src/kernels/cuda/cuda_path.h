// Paths: what differs between generations of GPUs, by what a device can do and never by its name.
//
// All of kernels/cuda is compiled once for each path of the build, in a namespace of its own
// (`gapless::cuda::GAPLESS_PATH`, an inline namespace: code of a path names its own things as if
// there were no others), for the architectures that belong to it (cmake/gapless_cuda.cmake). Which
// path runs is chosen once for a device, when its op table is made. So a path's code is never mixed
// with another's, an architecture is compiled once, and a newer GPU runs a lower path from its PTX.
//
//   path  devices        copies          registers   attention   8 bits
//   8.0   8.0 to 8.8     cp.async        as started  mma.sync    converted in software
//   8.9   8.9            cp.async        as started  mma.sync    converted by instructions
//   9.0   9.0 and later  copy engine     as started  mma.sync    converted by instructions
//   9.0a  9.0 alone      copy engine     exchanged   wgmma       converted by instructions
//
// Each capability has a file of its own in device/, which asks kPath.
#pragma once

#include <array>

namespace gapless::cuda {

struct CudaPath {
  const char* name;
  // Of devices that run it: 10 * major + minor of the compute capability.
  int min_capability, max_capability;
  // Bulk copies and boxes of tensors that complete on mbarriers, clusters of blocks, kernels that
  // start before their predecessor ends.
  bool has_copy_engine;
  // wgmma, and registers that change hands between warpgroups.
  bool has_warpgroups;
  // e4m3 in instructions and in cuBLASLt.
  bool has_fp8;
};

inline constexpr int kNewestCapability = 9999;

inline constexpr CudaPath kPath80 = {"8.0", 80, kNewestCapability, false, false, false};
inline constexpr CudaPath kPath89 = {"8.9", 89, kNewestCapability, false, false, true};
inline constexpr CudaPath kPath90 = {"9.0", 90, kNewestCapability, true, false, true};
inline constexpr CudaPath kPath90a = {"9.0a", 90, 90, true, true, true};

// Better ones first.
inline constexpr std::array<CudaPath, 4> kCudaPaths = {kPath90a, kPath90, kPath89, kPath80};

// The smallest shared memory of a block that devices of 8.0 and later have (8.6, 8.9, 12.0), and
// that of 9.0. What kernels reckon with, whatever the path; 9.0a always has the latter.
inline constexpr int kSmallestSharedBytes = 99 << 10;
inline constexpr int kLargestSharedBytes = 227 << 10;

}  // namespace gapless::cuda

// The path that a file is compiled for: one of these, by -DGAPLESS_PATH. Files outside of a path
// (what is tested on the host) see none.
#ifdef GAPLESS_PATH
namespace gapless::cuda {
inline namespace GAPLESS_PATH {
inline constexpr CudaPath kPath = GAPLESS_PATH_VALUE;
}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
#else
#define GAPLESS_PATH no_path
#endif
