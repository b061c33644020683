#include "model/workspace.h"

#include <algorithm>

#include "base/limits.h"
#include "device/bump_layout.h"

namespace gapless {
namespace {

// Takes [rows, columns] arrays of elements of T.
struct Carver {
  BumpLayout& layout;
  std::size_t element_bytes;

  void* operator()(std::int64_t rows, std::int64_t columns) {
    return layout.take(static_cast<std::size_t>(rows * columns) * element_bytes);
  }
};

VisionWorkspace carve_vision(Carver take, const VisionShape& shape, int max_crops) {
  const std::int64_t rows = std::int64_t{max_crops} * shape.patches_per_crop;
  VisionWorkspace vision;
  vision.patches = take(rows, shape.patch_stride);
  vision.x = take(rows, shape.dim);
  vision.norm = take(rows, shape.dim);
  vision.qkv = take(rows, 3 * shape.dim);
  vision.after_attention = vision.qkv;  // attention is done with it by then
  vision.attention = take(rows, shape.dim);
  vision.inner = take(rows, shape.ff_dim);
  vision.row_scales = take.layout.take_array<float>(static_cast<std::size_t>(rows));
  vision.pooled = take(shape.patches_per_crop, 2 * shape.dim);
  vision.projector_inner = take(shape.patches_per_crop, shape.projector_dim);
  return vision;
}

TextWorkspace carve_text(Carver take, const Kernels& kernels, const ModelShape& model,
                         const StepLimits& limits) {
  const TextShape& shape = model.text;
  const int tokens = std::max(limits.max_prefill_tokens, limits.max_seats);
  const int rows = limits.max_step_rows();
  TextWorkspace text;
  text.x = take(tokens, shape.dim);
  text.norm = take(tokens, shape.dim);
  text.qkv = take(tokens, std::max(shape.heads.qkv_width(), shape.dim));
  text.attention = take(tokens, std::max(shape.heads.q_width(), shape.dim));
  BumpLayout& layout = take.layout;
  const auto scales_scratch = [&](int count) {
    return shape.scales_heads ? kernels.scale_heads_scratch_bytes(count, shape.heads) : 0;
  };
  const std::size_t inner_bytes = static_cast<std::size_t>(tokens) *
                                  static_cast<std::size_t>(shape.up_dim) * take.element_bytes;
  text.inner = layout.take(std::max(inner_bytes, scales_scratch(tokens)));
  text.row_scales = take.layout.take_array<float>(static_cast<std::size_t>(tokens));
  const bool fp8_experts = shape.experts.num_experts > 0 && kernels.multiplies_fp8_experts();
  text.router_rows = take(fp8_experts ? tokens : 0, shape.dim);
  text.last_norm = take(rows, shape.dim);
  const std::size_t prefill_scratch = kernels.attention_scratch_bytes(
      limits.max_prefill_tokens, limits.max_prefill_sequences, shape.max_context, shape.heads);
  const std::size_t decode_scratch = kernels.attention_scratch_bytes(
      limits.max_seats, limits.max_seats, shape.max_context, shape.heads);
  text.attention_scratch =
      layout.take(std::max({prefill_scratch, decode_scratch, scales_scratch(limits.max_seats)}));
  text.op_scratch = layout.take(
      shape.experts.num_experts > 0 ? kernels.experts_scratch_bytes(tokens, shape.experts) : 0);
  text.block_scratch = layout.take(kernels.decoder_blocks_scratch_bytes(
      limits.max_seats, shape.dim, shape.ff_dim, shape.heads, shape.max_context, shape.experts));
  text.sample_scratch = layout.take(kernels.sample_scratch_bytes(rows, shape.vocab));
  text.region_scratch = layout.take(
      kernels.region_scratch_bytes(rows, shape.dim, model.region.inner_dim, model.region.max_bins));
  const auto seats = static_cast<std::size_t>(limits.max_seats);
  text.positions = layout.take_array<std::int32_t>(seats);
  text.cache_slots = layout.take_array<std::int32_t>(seats);
  text.sequences = layout.take_array<AttentionSequence>(seats);
  text.input_index = layout.take_array<std::int32_t>(seats);
  text.needed_logits = layout.take_array<StepLogits>(1);
  text.shared_prefixes = layout.take_array<SharedPrefix>(seats);
  text.any_lives = layout.take_array<std::uint32_t>(1);
  return text;
}

void carve(BumpLayout& layout, const Kernels& kernels, const ModelShape& shape,
           const StepLimits& limits, VisionWorkspace& vision, TextWorkspace& text) {
  Carver take{layout, dtype_bytes(kernels.activation_dtype())};
  void* const features = take(
      std::int64_t{max_feature_crops(limits)} * shape.vision.patches_per_crop, shape.vision.dim);
  const std::size_t start = layout.mark();
  vision = carve_vision(take, shape.vision, limits.max_crops_per_encode);
  vision.features = features;
  layout.rewind(start);
  text = carve_text(take, kernels, shape, limits);
}

}  // namespace

int max_feature_crops(const StepLimits& limits) {
  return std::max(limits.max_crops_per_encode, 1 + kMaxTilesPerImage);
}

std::size_t workspace_bytes(const Kernels& kernels, const ModelShape& shape,
                            const StepLimits& limits) {
  BumpLayout layout;
  VisionWorkspace vision;
  TextWorkspace text;
  carve(layout, kernels, shape, limits, vision, text);
  return layout.peak_bytes();
}

StatusOr<Workspace> Workspace::create(Device& device, const Kernels& kernels,
                                      const ModelShape& shape, const StepLimits& limits) {
  Workspace workspace;
  GAPLESS_ASSIGN_OR_RETURN(workspace.buffer_,
                           device.allocate(workspace_bytes(kernels, shape, limits)));
  BumpLayout layout(workspace.buffer_.data());
  carve(layout, kernels, shape, limits, workspace.vision_, workspace.text_);
  return workspace;
}

StatusOr<Workspace> Workspace::create_for_crop(Device& device, const Kernels& kernels,
                                               const VisionShape& shape) {
  const auto carve_crop = [&](BumpLayout& layout) {
    const Carver take{layout, dtype_bytes(kernels.activation_dtype())};
    VisionWorkspace vision = carve_vision(take, shape, 1);
    vision.features = Carver(take)(shape.patches_per_crop, shape.dim);
    return vision;
  };
  BumpLayout sizes;
  (void)carve_crop(sizes);
  Workspace workspace;
  GAPLESS_ASSIGN_OR_RETURN(workspace.buffer_, device.allocate(sizes.peak_bytes()));
  BumpLayout layout(workspace.buffer_.data());
  workspace.vision_ = carve_crop(layout);
  return workspace;
}

}  // namespace gapless
