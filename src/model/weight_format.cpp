#include "model/weight_format.h"

#include <vector>

namespace gapless {

Status round_weights_to_fp8(Kernels& kernels, Stream& stream, const ModelWeights& weights) {
  std::vector<LinearWeights> matrices{weights.projector.fc1, weights.projector.fc2,
                                      weights.text.lm_head};
  for (const VisionBlockWeights& block : weights.vision.blocks) {
    matrices.insert(matrices.end(), {block.qkv, block.proj, block.fc1, block.fc2});
  }
  for (const TextBlockWeights& block : weights.text.blocks) {
    matrices.insert(matrices.end(), {block.qkv, block.proj, block.fc1, block.fc2});
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

}  // namespace gapless
