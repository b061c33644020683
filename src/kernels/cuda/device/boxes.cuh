// Boxes of matrices on their way into shared memory: some rows of kBoxColumns columns, swizzled
// (tensor_map.h). Parts outside of the matrix are zeros.
//
// With a copy engine a matrix is described by a tensor map, and one thread asks for a box. Without,
// by itself, and all lanes of a warp copy 16 bytes each.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/tensor_map.h"

namespace gapless {

using BoxSource = std::conditional_t<kHasCopyEngine, CUtensorMap, cuda::PlainMatrix>;

__device__ __forceinline__ void prefetch_box_source(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}
__device__ __forceinline__ void prefetch_box_source(const cuda::PlainMatrix* /*matrix*/) {}

// (To the block's own memory: of an address in the cluster, code for 12.0 asks whose it is, and calls a function if another's.)
__device__ __forceinline__ void copy_box_async(std::uint32_t to_shared, const CUtensorMap* map,
                                               int column, int row, int /*box_rows*/,
                                               std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to_shared),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

__device__ __forceinline__ void copy_box_async(std::uint32_t to_shared,
                                               const cuda::PlainMatrix* matrix, int column, int row,
                                               int box_rows, std::uint32_t /*barrier*/) {
  constexpr int kChunks = cuda::kBoxColumns / kVector;  // 16 bytes each
  static_assert(kChunks == 8);
  const auto* from = static_cast<const Bf16*>(matrix->data);
  for (int i = threadIdx.x % kWarp; i < box_rows * kChunks; i += kWarp) {
    const int r = i / kChunks, chunk = i % kChunks;
    const int at_row = row + r, at_column = column + chunk * kVector;
    const bool exists = at_row < matrix->rows && at_column < matrix->columns;
    copy_async_16(to_shared + r * (kChunks * 16) + ((chunk ^ r % 8) << 4),
                  exists ? from + at_row * matrix->stride + at_column : from, exists);
  }
}

}  // namespace gapless
