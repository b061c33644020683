// Row-major bf16 matrices from which kernels copy boxes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/status.h"
#include "kernels/cuda/cuda_path.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// The columns of one copied box: 64 bf16 are the 128 bytes that the engine swizzles over, so that
// the box lies in shared memory as rows of 128 bytes whose 16-byte chunk c is stored at c ^ (row %
// 8).
inline constexpr int kBoxColumns = 64;

// A [rows, columns] matrix with `stride` elements between rows, where there is no copy engine
// (device/boxes.cuh).
struct PlainMatrix {
  const void* data;
  std::int64_t stride;
  int rows, columns;
};

// A [rows, columns] matrix with `stride` elements between rows, copied in boxes of
// box_rows x kBoxColumns. Parts of a box outside the matrix read as zeros. The address must be a
// multiple of 16 bytes and the stride a multiple of 8. Calls the driver, not the device: no
// allocation.
StatusOr<CUtensorMap> make_tensor_map(const void* matrix, std::int64_t rows, std::int64_t columns,
                                      std::int64_t stride, int box_rows);

// What a kernel copies boxes from, whichever of the two it is.
Status describe_boxes(CUtensorMap& to, const void* matrix, int rows, int columns,
                      std::int64_t stride, int box_rows);
Status describe_boxes(PlainMatrix& to, const void* matrix, int rows, int columns,
                      std::int64_t stride, int box_rows);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
