// Weights of experts from which a kernel copies boxes.
#pragma once

#include <cuda.h>

#include "base/status.h"
#include "kernels/cuda/cuda_path.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// [num_experts, out, in] weights of 1 or 2 bytes, in boxes of box_rows rows of an expert by 128 bytes of columns, swizzled over these. A box takes eight rows of each of `parts` equal parts of the matrix in turn, and
// has zeros for what the matrix has not. Its coordinates are: the column, 0, 0, the first of its eights in a part, the expert.
// A part's rows and box_rows / parts are multiples of 8.
StatusOr<CUtensorMap> make_expert_map(const void* weights, int element_bytes, int num_experts,
                                      int out, int in, int parts, int box_rows);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
