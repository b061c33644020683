// The driver's function that makes tensor maps.
#pragma once

#include <cuda.h>

#include "base/status.h"
#include "kernels/cuda/cuda_path.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// An error where the driver does not have it.
Status find_encode_tiled(EncodeTiled& to);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
