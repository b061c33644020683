#include "model/model_shape.h"

#include <algorithm>
#include <utility>

namespace gapless {
namespace {

// Head size of the text decoder in every published model: the attention kernels are written for it.
constexpr int kTextHeadDim = 64;

Status check_padded(const char* field, int value) {
  if (value % kRowPadding == 0) return ok_status();
  return invalid_argument("{} = {} must be a multiple of {} to run here", field, value,
                          kRowPadding);
}

}  // namespace

Status check_model_shape(const ModelConfig& config) {
  if (config.text.head_dim() != kTextHeadDim) {
    return invalid_argument("text.dim / text.n_heads = {} must be {} to run here",
                            config.text.head_dim(), kTextHeadDim);
  }
  const std::pair<const char*, int> fields[] = {
      {"vision.enc_dim", config.vision.enc_dim},
      {"vision.proj_inner_dim", config.vision.proj_inner_dim},
      {"region.inner_dim", config.region.inner_dim},
      {"text.moe.expert_inner_dim", config.text.moe.expert_inner_dim},
      {"region.coord_feat_dim", config.region.coord_feat_dim},
      {"region.size_feat_dim", config.region.size_feat_dim}};
  for (const auto& [field, value] : fields) GAPLESS_RETURN_IF_ERROR(check_padded(field, value));
  return ok_status();
}

VisionShape vision_shape(const ModelConfig& config) {
  const auto& vision = config.vision;
  VisionShape shape;
  shape.dim = vision.enc_dim;
  shape.num_layers = vision.enc_n_layers;
  shape.num_heads = vision.enc_n_heads;
  shape.head_dim = vision.head_dim();
  shape.ff_dim = pad_inner(vision.enc_ff_dim);
  shape.grid = vision.grid();
  shape.patches_per_crop = vision.num_image_tokens();
  shape.patch_stride = pad_row(vision.patch_values());
  shape.projector_dim = vision.proj_inner_dim;
  return shape;
}

TextShape text_shape(const ModelConfig& config) {
  const auto& text = config.text;
  TextShape shape;
  shape.dim = text.dim;
  shape.num_layers = text.n_layers;
  shape.heads = {
      .num_heads = text.n_heads, .num_kv_heads = text.n_kv_heads, .head_dim = text.head_dim()};
  shape.rotary_dim = text.rotary_dim();
  shape.ff_dim = pad_inner(text.ff_dim);
  shape.up_dim = shape.ff_dim;
  shape.vocab = text.vocab_size;
  shape.max_context = text.max_context;
  if (text.moe.num_experts > 0) {
    shape.experts = {.dim = text.dim,
                     .inner = text.moe.expert_inner_dim,
                     .num_experts = text.moe.num_experts,
                     .experts_per_token = text.moe.experts_per_token};
  }
  shape.scales_heads = text.tau_attn;
  return shape;
}

ModelShape model_shape(const ModelConfig& config) {
  return {
      .text = text_shape(config),
      .vision = vision_shape(config),
      .region = {.inner_dim = config.region.linear_decoders ? 0 : config.region.inner_dim,
                 .max_bins = std::max(config.region.coord_out_dim, config.region.size_out_dim)}};
}

}  // namespace gapless
