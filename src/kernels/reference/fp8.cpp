#include "kernels/fp8.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

void round_to_fp8(const RoundToFp8Params& params) {
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    float* row = static_cast<float*>(params.weight) + r * params.row_size;
    float max_value = 0;
    for (std::int64_t i = 0; i < params.row_size; ++i) {
      max_value = std::max(max_value, std::fabs(row[i]));
    }
    const int exponent = fp8_row_exponent(max_value);
    for (std::int64_t i = 0; i < params.row_size; ++i) {
      row[i] = std::ldexp(round_to_e4m3(std::ldexp(row[i], -exponent)), exponent);
    }
  }
}

// The scales are multiplied in.
void rows_to_fp8(const RowsToFp8Params& params) {
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    const float* x = static_cast<const float*>(params.x) + r * params.x_stride;
    float* y = static_cast<float*>(params.y) + r * params.y_stride;
    float max_value = 0;
    for (int i = 0; i < params.dim; ++i) max_value = std::max(max_value, std::fabs(x[i]));
    const int exponent = fp8_activation_exponent(max_value);
    for (int i = 0; i < params.dim; ++i) {
      y[i] = std::ldexp(round_to_e4m3(std::ldexp(x[i], -exponent)), exponent);
    }
    params.scales[r] = 1;
  }
}

}  // namespace gapless::reference
