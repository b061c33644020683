#include "model/weight_format.h"

#include <vector>

#include "model/bump_layout.h"

namespace gapless {

Status round_weights_to_fp8(Kernels& kernels, Stream& stream, const ModelWeights& weights) {
  std::vector<LinearWeights> matrices{weights.projector.fc1, weights.projector.fc2,
                                      weights.text.lm_head};
  for (const VisionBlockWeights& block : weights.vision.blocks) {
    matrices.insert(matrices.end(), {block.qkv, block.proj, block.fc1, block.fc2});
  }
  for (const DecoderBlock& block : weights.text.blocks) {
    matrices.insert(matrices.end(), {block.qkv, block.proj, block.ff.up, block.ff.down});
  }
  for (const LinearWeights& matrix : matrices) {
    // They lie in weights.buffer, which is not const: only the layers see them so.
    GAPLESS_RETURN_IF_ERROR(
        kernels.round_to_fp8(stream, {.weight = const_cast<void*>(matrix.weight),
                                      .num_rows = matrix.out,
                                      .row_size = matrix.in}));
  }
  return ok_status();
}

namespace {

// Those whose inputs a LayerNorm makes, which ends in 8 bits for nothing, and those whose gain pays
// for a pass over their inputs. Attention's output is not worth one.
std::vector<LinearWeights*> fp8_products(ModelWeights& weights) {
  std::vector<LinearWeights*> matrices;
  for (VisionBlockWeights& block : weights.vision.blocks) {
    matrices.insert(matrices.end(), {&block.qkv, &block.fc1, &block.fc2});
  }
  for (DecoderBlock& block : weights.text.blocks) {
    matrices.insert(matrices.end(), {&block.qkv, &block.ff.up, &block.ff.down});
  }
  return matrices;
}

}  // namespace

Status make_fp8_products(Device& device, Kernels& kernels, Stream& stream, ModelWeights& weights) {
  const std::vector<LinearWeights*> matrices = fp8_products(weights);
  auto lay_out = [&](BumpLayout layout) {
    for (LinearWeights* matrix : matrices) {
      const auto rows = static_cast<std::size_t>(matrix->out);
      matrix->fp8 =
          layout.take(rows * static_cast<std::size_t>(matrix->in) * kernels.fp8_element_bytes());
      matrix->fp8_scales = layout.take_array<float>(rows);
    }
    return layout.peak_bytes();
  };
  GAPLESS_ASSIGN_OR_RETURN(weights.fp8, device.allocate(lay_out(BumpLayout())));
  lay_out(BumpLayout(weights.fp8.data()));
  for (const LinearWeights* matrix : matrices) {
    GAPLESS_RETURN_IF_ERROR(
        kernels.rows_to_fp8(stream, {.x = matrix->weight,
                                     .x_stride = matrix->in,
                                     .y = const_cast<void*>(matrix->fp8),
                                     .y_stride = matrix->in,
                                     .scales = const_cast<float*>(matrix->fp8_scales),
                                     .num_rows = matrix->out,
                                     .dim = matrix->in}));
  }
  return ok_status();
}

}  // namespace gapless
