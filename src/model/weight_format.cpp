#include "model/weight_format.h"

#include <vector>

#include "base/check.h"
#include "kernels/dense_ops.h"

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
    if (tensor.fp8 != Fp8Use::kMultiplied) continue;
    GAPLESS_CHECK(copy != copies.tensors.end() && copy->name == tensor.name);
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
  return ok_status();
}

Status keep_experts_in_fp8(Device& device, Kernels& kernels, Stream& stream,
                           DecoderWeights& weights) {
  if (!kernels.reads_fp8_experts()) return ok_status();
  struct Matrices {
    LinearWeights* first;
    int num_rows;  // of all experts
  };
  std::vector<Matrices> found;
  std::size_t num_scales = 0;
  for (DecoderBlock& block : weights.text.blocks) {
    FeedForward& ff = block.ff;
    constexpr int kRowMultiple = 16;
    if (ff.kind != FeedForwardKind::kExperts || block.prepared_experts.up == nullptr ||
        ff.up.in % kRowMultiple != 0 || ff.down.in % kRowMultiple != 0) {
      continue;
    }
    for (LinearWeights* first : {&ff.up, &ff.down}) {
      found.push_back({first, ff.num_experts * first->out});
      num_scales += static_cast<std::size_t>(found.back().num_rows);
    }
  }
  if (found.empty()) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(weights.expert_scales, device.allocate(num_scales * sizeof(float)));
  auto* scales = weights.expert_scales.as<float>();
  for (const auto& [first, num_rows] : found) {
    RowsToFp8Params params = in_place_rows_to_fp8(kernels, const_cast<void*>(first->weight),
                                                  first->in, first->in, scales, num_rows);
    GAPLESS_RETURN_IF_ERROR(kernels.rows_to_fp8(stream, params));
    first->fp8_scales = scales;
    scales += num_rows;
  }
  return ok_status();
}

}  // namespace gapless
