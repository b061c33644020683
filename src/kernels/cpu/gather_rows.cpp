#include <cstddef>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace gapless::cpu {

void gather_rows(DType dtype, const GatherRowsParams& params) {
  const std::size_t row_bytes = static_cast<std::size_t>(params.dim) * dtype_bytes(dtype);
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    const auto from = static_cast<std::size_t>(params.index[i]);
    std::memcpy(static_cast<std::byte*>(params.y) + static_cast<std::size_t>(i) * row_bytes,
                static_cast<const std::byte*>(params.x) + from * row_bytes, row_bytes);
  }
}

}  // namespace gapless::cpu
