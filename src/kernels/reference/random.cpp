#include <algorithm>

#include "base/random_weights.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

void fill_random(const FillRandomParams& params) {
  const RandomTensorSpec spec{.seed = params.seed,
                              .tensor_hash = params.tensor_hash,
                              .mean = params.mean,
                              .stddev = params.stddev};
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    float* row = static_cast<float*>(params.out) + r * params.row_stride;
    for (std::int64_t i = 0; i < params.row_size; ++i) {
      row[i] = random_value(
          spec, static_cast<std::uint64_t>((params.first_row + r) * params.row_size + i));
    }
    std::fill(row + params.row_size, row + params.row_stride, 0.0f);
  }
}

}  // namespace gapless::reference
