#include "model/int8_weights.h"

#include "device/bump_layout.h"

namespace gapless {
namespace {

std::vector<LinearWeights*> matrices_of(DecoderBlock& block) {
  std::vector<LinearWeights*> matrices = {&block.qkv, &block.proj};
  if (block.ff.kind != FeedForwardKind::kExperts) {
    matrices.insert(matrices.end(), {&block.ff.up, &block.ff.down});
  }
  return matrices;
}

// Takes memory for them, in this order. Without a base only the size means something.
void place(const Kernels& kernels, const std::vector<LinearWeights*>& matrices,
           BumpLayout& layout) {
  for (LinearWeights* one : matrices) {
    one->int8 = layout.take(kernels.int8_bytes(one->in, one->out));
  }
}

Status pack(Kernels& kernels, Stream& stream, const std::vector<LinearWeights*>& matrices) {
  for (const LinearWeights* one : matrices) {
    GAPLESS_RETURN_IF_ERROR(
        kernels.pack_int8(stream, {.weights = *one, .packed = const_cast<void*>(one->int8)}));
  }
  return ok_status();
}

}  // namespace

Status check_int8_products(const Kernels& kernels) {
  if (kernels.int8_bytes(1, 1) > 0) return ok_status();
  return invalid_argument(
      "--weights int8 is for the CPU (--device cpu); a GPU has --weights fp8 for decode steps and "
      "w8a8 for "
      "pictures and prompts as well");
}

Status make_int8_products(Device& device, Kernels& kernels, Stream& stream, DecoderWeights& weights,
                          const std::vector<LinearWeights*>& others,
                          const std::function<Status(int)>& fill_block) {
  std::vector<LinearWeights*> all = others;
  all.push_back(&weights.text.lm_head);
  const std::vector<LinearWeights*> resident = all;
  for (DecoderBlock& block : weights.text.blocks) {
    const std::vector<LinearWeights*> matrices = matrices_of(block);
    all.insert(all.end(), matrices.begin(), matrices.end());
  }
  BumpLayout sizes;
  place(kernels, all, sizes);
  GAPLESS_ASSIGN_OR_RETURN(weights.int8, device.allocate(sizes.peak_bytes()));
  BumpLayout layout(weights.int8.data());
  place(kernels, all, layout);
  GAPLESS_RETURN_IF_ERROR(pack(kernels, stream, resident));
  for (std::size_t i = 0; i < weights.text.blocks.size(); ++i) {
    if (fill_block) GAPLESS_RETURN_IF_ERROR(fill_block(static_cast<int>(i)));
    GAPLESS_RETURN_IF_ERROR(pack(kernels, stream, matrices_of(weights.text.blocks[i])));
  }
  return ok_status();
}

}  // namespace gapless
