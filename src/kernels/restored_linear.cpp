#include "kernels/restored_linear.h"

#include <algorithm>

#include "base/check.h"

namespace gapless {
namespace {

// A part of a prepared matrix begins at a multiple of so many rows (PrepareLinearParams).
constexpr int kPartRows = 16;

constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

const void* advance(const void* from, int elements, DType dtype) {
  if (from == nullptr) return nullptr;
  return static_cast<const std::byte*>(from) +
         static_cast<std::size_t>(elements) * dtype_bytes(dtype);
}

// The product's columns from `first` on, `num` of them.
LinearParams columns_of(const LinearParams& params, int first, int num, DType dtype) {
  LinearParams part = params;
  part.weights.out = num;
  part.weights.bias = advance(params.weights.bias, first, dtype);
  part.residual = advance(params.residual, first, dtype);
  part.y = const_cast<void*>(advance(params.y, first, params.y_dtype));
  part.needed = nullptr;  // it names columns of the whole
  return part;
}

}  // namespace

Status restored_linear(Kernels& kernels, Stream& stream, const LinearParams& params) {
  const LinearWeights& weights = params.weights;
  if (weights.restore.prepared == nullptr) return kernels.linear(stream, params);
  // Parts of the same size: the order in which a backend adds up may depend on whether a matrix has few rows.
  const int num_parts = divide_up(weights.out, weights.restore.out);
  const int rows = divide_up(divide_up(weights.out, num_parts), kPartRows) * kPartRows;
  GAPLESS_CHECK(num_parts == 1 ||
                (rows <= weights.restore.out && !weights.restore.halves_alternate &&
                 params.activation_begin == 0 && params.x_scales == nullptr));
  for (int first = 0; first < weights.out; first += rows) {
    RestoreLinearParams restore = weights.restore;
    restore.first_out += first;
    restore.out = std::min(rows, weights.out - first);
    GAPLESS_RETURN_IF_ERROR(kernels.restore_linear(stream, restore));
    GAPLESS_RETURN_IF_ERROR(
        kernels.linear(stream, columns_of(params, first, restore.out, kernels.activation_dtype())));
  }
  return ok_status();
}

}  // namespace gapless
