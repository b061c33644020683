// Stands in for device/cuda where the CUDA toolkit was absent at build time.
#include "device/device.h"
#include "device/device_list.h"

namespace gapless {

StatusOr<std::unique_ptr<Device>> open_cuda_device(int ordinal) {
  return make_error(StatusCode::kUnavailable, "no CUDA device: cuda:{}: built without CUDA",
                    ordinal);
}

int num_cuda_devices() {
  return 0;
}

}  // namespace gapless
