#include "model/weight_format.h"

#include "base/check.h"

namespace gapless {

Status round_weights_to_fp8(Kernels& kernels, Stream& stream, const TensorLayout& layout,
                            void* weights_dev) {
  for (const TensorPlacement& tensor : layout.tensors) {
    if (tensor.fp8 == Fp8Use::kNone) continue;
    GAPLESS_RETURN_IF_ERROR(kernels.round_to_fp8(
        stream, {.weight = static_cast<std::byte*>(weights_dev) + tensor.offset_bytes,
                 .num_rows = tensor.device_rows,
                 .row_size = tensor.row_stride}));
  }
  return ok_status();
}

Status fill_fp8_copies(Kernels& kernels, Stream& stream, const TensorLayout& layout,
                       const void* weights_dev, const Fp8Layout& copies, void* copies_dev) {
  auto copy = copies.tensors.begin();
  for (const TensorPlacement& tensor : layout.tensors) {
    if (copy == copies.tensors.end() || copy->name != tensor.name) continue;
    auto* to = static_cast<std::byte*>(copies_dev);
    GAPLESS_RETURN_IF_ERROR(kernels.rows_to_fp8(
        stream, {.x = static_cast<const std::byte*>(weights_dev) + tensor.offset_bytes,
                 .x_stride = tensor.row_stride,
                 .y = to + copy->offset_bytes,
                 .y_stride = tensor.row_stride,
                 .scales = reinterpret_cast<float*>(to + copy->scales_offset_bytes),
                 .num_rows = static_cast<int>(tensor.device_rows),
                 .dim = static_cast<int>(tensor.row_stride)}));
    ++copy;
  }
  GAPLESS_CHECK(copy == copies.tensors.end());
  return ok_status();
}

}  // namespace gapless
