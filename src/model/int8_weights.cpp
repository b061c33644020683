#include "model/int8_weights.h"

#include "device/bump_layout.h"

namespace gapless {
namespace {

// Takes memory for them, in this order. Without a base only the size means something.
void place(const Kernels& kernels, const Int8Groups& groups, BumpLayout& layout) {
  for (const std::vector<LinearWeights*>& group : groups) {
    for (LinearWeights* one : group) {
      one->int8 = layout.take(kernels.int8_bytes(one->in, one->out));
    }
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

Int8Groups int8_groups(TextWeights& text) {
  Int8Groups groups;
  for (DecoderBlock& block : text.blocks) {
    groups.push_back({&block.qkv, &block.proj});
    if (block.ff.kind == FeedForwardKind::kExperts) continue;
    groups.back().insert(groups.back().end(), {&block.ff.up, &block.ff.down});
  }
  groups.push_back({&text.lm_head});
  return groups;
}

Status check_int8_products(const Kernels& kernels) {
  if (kernels.int8_bytes(1, 1) > 0) return ok_status();
  return invalid_argument(
      "--weights int8 is for the CPU (--device cpu); a GPU has --weights fp8 for decode steps and "
      "w8a8 for "
      "pictures and prompts as well");
}

Status make_int8_products(Device& device, Kernels& kernels, Stream& stream, DecoderWeights& weights,
                          const Int8Groups& groups, const FillGroup& fill_group) {
  BumpLayout sizes;
  place(kernels, groups, sizes);
  GAPLESS_ASSIGN_OR_RETURN(weights.int8, device.allocate(sizes.peak_bytes()));
  BumpLayout layout(weights.int8.data());
  place(kernels, groups, layout);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (fill_group) GAPLESS_RETURN_IF_ERROR(fill_group(static_cast<int>(i)));
    GAPLESS_RETURN_IF_ERROR(pack(kernels, stream, groups[i]));
  }
  return ok_status();
}

}  // namespace gapless
