// Kernels for a device of dry_device.h: their ops do nothing, their sizes are those of the kernels that such a device has.
#pragma once

#include <memory>

#include "base/status.h"
#include "device/device.h"
#include "kernels/compute.h"
#include "kernels/kernels.h"

namespace gapless {

// What they allocate for themselves is allocated on the device, which must outlive them. Unavailable for a GPU where
// CUDA was absent at build time.
StatusOr<std::unique_ptr<Kernels>> make_dry_kernels(Device& device, Compute compute);

// The same with sizes from `sizes`, none of whose ops is called.
std::unique_ptr<Kernels> make_dry_kernels(std::unique_ptr<Kernels> sizes);

// The sizes of a GPU's kernels: no op of these may be called.
StatusOr<std::unique_ptr<Kernels>> make_dry_cuda_kernels(Device& device);

}  // namespace gapless
