// Rows in 8 bits (fp8.h). The CPU has no such products: the numbers are kept as T, which holds them
// exactly, with the row's power of two multiplied in.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"
#include "kernels/fp8.h"

namespace gapless::cpu {
namespace {

template <typename T>
void round_row(const T* x, std::int64_t size, int (*exponent_of)(float), T* y) {
  float max_value = 0;
  for (std::int64_t i = 0; i < size; ++i)
    max_value = std::max(max_value, std::fabs(to_float(x[i])));
  const int exponent = exponent_of(max_value);
  for (std::int64_t i = 0; i < size; ++i) {
    const float scaled = std::ldexp(to_float(x[i]), -exponent);
    y[i] = rounded<T>(std::ldexp(round_to_e4m3(scaled), exponent));
  }
}

}  // namespace

void round_to_fp8(DType dtype, const RoundToFp8Params& params) {
  with_element(dtype, [&]<typename T>() {
    ThreadPool::shared().parallel_for(params.num_rows, [&](std::int64_t r) {
      T* row = static_cast<T*>(params.weight) + r * params.row_size;
      round_row(row, params.row_size, fp8_row_exponent, row);
    });
  });
}

void rows_to_fp8(DType dtype, const RowsToFp8Params& params) {
  with_element(dtype, [&]<typename T>() {
    ThreadPool::shared().parallel_for(params.num_rows, [&](std::int64_t r) {
      round_row(static_cast<const T*>(params.x) + r * params.x_stride, params.dim,
                fp8_activation_exponent, static_cast<T*>(params.y) + r * params.y_stride);
      params.scales[r] = 1;
    });
  });
}

}  // namespace gapless::cpu
