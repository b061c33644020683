// How rows are sorted by their experts (experts.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_path.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Rows [first, first + count) of the sorted pairs.
struct ExpertTile {
  std::int32_t expert, first, count;
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
