#include "model/model_shape.h"

namespace gapless {
namespace {

// Head size of the text decoder in every published model; the attention kernels are written for it.
constexpr int kTextHeadDim = 64;

Status check_multiple(const char* field, int value, int divisor) {
  if (value > 0 && value % divisor == 0) return ok_status();
  return invalid_argument("config: {} = {} must be a positive multiple of {}", field, value,
                          divisor);
}

Status check_equal(const char* field, int value, const char* other_field, int other) {
  if (value == other) return ok_status();
  return invalid_argument("config: {} = {} must equal {} = {}", field, value, other_field, other);
}

}  // namespace

Status check_model_shape(const ModelConfig& config) {
  const auto& text = config.text;
  const auto& vision = config.vision;
  const auto& region = config.region;
  GAPLESS_RETURN_IF_ERROR(check_multiple("text.dim", text.dim, kTextHeadDim));
  GAPLESS_RETURN_IF_ERROR(
      check_equal("text.n_heads", text.n_heads, "text.dim / 64", text.dim / kTextHeadDim));
  GAPLESS_RETURN_IF_ERROR(
      check_equal("text.n_kv_heads", text.n_kv_heads, "text.n_heads", text.n_heads));
  GAPLESS_RETURN_IF_ERROR(check_multiple("vision.enc_dim", vision.enc_dim, kRowPadding));
  GAPLESS_RETURN_IF_ERROR(check_multiple("vision.enc_n_heads", vision.enc_n_heads, 1));
  GAPLESS_RETURN_IF_ERROR(check_multiple("vision.enc_dim", vision.enc_dim, vision.enc_n_heads));
  GAPLESS_RETURN_IF_ERROR(check_equal("vision.in_channels", vision.in_channels, "", 3));
  GAPLESS_RETURN_IF_ERROR(check_multiple("vision.enc_patch_size", vision.enc_patch_size, 1));
  GAPLESS_RETURN_IF_ERROR(
      check_multiple("vision.crop_size", vision.crop_size, vision.enc_patch_size));
  GAPLESS_RETURN_IF_ERROR(
      check_multiple("vision.proj_inner_dim", vision.proj_inner_dim, kRowPadding));
  GAPLESS_RETURN_IF_ERROR(
      check_equal("vision.proj_out_dim", vision.proj_out_dim, "text.dim", text.dim));
  GAPLESS_RETURN_IF_ERROR(check_equal("region.dim", region.dim, "text.dim", text.dim));
  GAPLESS_RETURN_IF_ERROR(check_multiple("region.inner_dim", region.inner_dim, kRowPadding));
  GAPLESS_RETURN_IF_ERROR(
      check_multiple("region.coord_feat_dim", region.coord_feat_dim, kRowPadding));
  return check_multiple("region.size_feat_dim", region.size_feat_dim, kRowPadding);
}

VisionShape vision_shape(const ModelConfig& config) {
  const auto& vision = config.vision;
  VisionShape shape;
  shape.dim = vision.enc_dim;
  shape.num_layers = vision.enc_n_layers;
  shape.num_heads = vision.enc_n_heads;
  shape.head_dim = vision.enc_dim / vision.enc_n_heads;
  shape.ff_dim = pad_row(vision.enc_ff_dim);
  shape.grid = vision.crop_size / vision.enc_patch_size;
  shape.patches_per_crop = shape.grid * shape.grid;
  shape.patch_stride = pad_row(vision.in_channels * vision.enc_patch_size * vision.enc_patch_size);
  shape.projector_dim = vision.proj_inner_dim;
  return shape;
}

TextShape text_shape(const ModelConfig& config) {
  const auto& text = config.text;
  TextShape shape;
  shape.dim = text.dim;
  shape.num_layers = text.n_layers;
  shape.num_heads = text.n_heads;
  shape.head_dim = text.dim / text.n_heads;
  shape.rotary_dim = shape.head_dim / 2;
  shape.ff_dim = pad_row(text.ff_dim);
  shape.vocab = text.vocab_size;
  shape.max_context = text.max_context;
  return shape;
}

}  // namespace gapless
