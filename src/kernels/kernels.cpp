#include "kernels/kernels.h"

namespace gapless {

StatusOr<std::unique_ptr<Kernels>> make_kernels(Device& device) {
  switch (device.kind()) {
    case DeviceKind::kCpu:
      return make_cpu_kernels();
    case DeviceKind::kCuda:
      return make_cuda_kernels(device);
    case DeviceKind::kSimulated:
      break;
  }
  return make_error(StatusCode::kUnavailable, "a simulated device has no kernels");
}

}  // namespace gapless
