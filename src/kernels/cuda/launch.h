// Host side of a kernel launch: the shape, the attributes, and the error as a Status that names the
// kernel. Included by .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/cuda_path.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks along x that form a cluster
  // That a thread starts with, where warps exchange some of them; 0: they do not.
  int registers = 0;
  // False: the kernel starts when its predecessor is through, whatever that one lets it do.
  bool overlaps = true;
};

// Makes the stream's device the calling thread's current one.
inline cudaStream_t native_stream(Stream& stream) {
  return static_cast<cudaStream_t>(stream.native_handle());
}

// OK, or a device error that names the kernel.
Status launch_status(cudaError_t error, const char* kernel_name);

// An error where the kernel was compiled to fewer registers a thread than LaunchShape says: who
// takes registers that are not there waits for ever.
Status check_registers(const char* kernel_name, const void* kernel, int expected);

// Launches, with overlap allowed where the path has it (device/launch_overlap.cuh says what a kernel owes for that). An empty grid
// is no work.
template <typename... Params, typename... Args>
Status launch(const char* name, Stream& stream, const LaunchShape& shape, void (*kernel)(Params...),
              Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return ok_status();
  // First: a kernel's attributes are those of the current device.
  const cudaStream_t native = native_stream(stream);
  if (shape.registers > 0) {
    GAPLESS_RETURN_IF_ERROR(
        check_registers(name, reinterpret_cast<const void*>(kernel), shape.registers));
  }
  // All kernels divide L1 and shared memory alike: a multiprocessor must be idle to change the
  // division, which would keep neighbouring kernels from overlapping.
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess && shape.shared_bytes > 0) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shape.shared_bytes));
  }
  if (error != cudaSuccess) return launch_status(error, name);
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (kPath.has_copy_engine && shape.overlaps) {
    cudaLaunchAttribute& overlap = attributes[num_attributes++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = shape.cluster;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = native;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  return launch_status(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

constexpr unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
