// Products with a matrix of few rows, such as a router: too few tiles for the device if each summed all columns. So the
// columns are cut into parts (split-K), and whoever reads an output adds its parts up, in order.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// How columns are cut is the shape's alone, so a row's sums do not depend on how many rows there are.
enum class SplitShape : std::uint8_t {
  kFewRows,  // of a decode step
  kManyRows,
};

struct SplitProduct {
  const Bf16* x;  // [num_rows, in], rows x_stride apart: both multiples of kVector
  std::int64_t x_stride;
  int num_rows;
  Activation activation;  // of x, rounded to T
  const Bf16* weights;    // [out, in]
  int in, out;
  float* parts;  // [num_rows, num_split_parts(), out]
};

int num_split_parts(int in, SplitShape shape);
Status split_product(Stream& stream, const SplitProduct& product, SplitShape shape);

// y = W x + b, rounded to T: a linear without activation or residual, in two launches. `parts`: as SplitProduct's, of kManyRows.
Status split_linear(Stream& stream, const LinearParams& params, float* parts);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
