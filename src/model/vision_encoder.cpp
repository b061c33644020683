#include "model/vision_encoder.h"

namespace gapless {

Status VisionEncoder::embed_patches(Stream& stream, const std::uint8_t* crops,
                                    int num_crops) const {
  const int rows = num_crops * shape_.patches_per_crop;
  PatchifyParams patchify;
  patchify.crops = crops;
  patchify.lut = lut_dev_;
  patchify.patches = workspace_.patches;
  patchify.num_crops = num_crops;
  patchify.crop_size = crop_size_;
  patchify.patch_size = patch_size_;
  patchify.patch_stride = shape_.patch_stride;
  GAPLESS_RETURN_IF_ERROR(context_.kernels->patchify(stream, patchify));
  GAPLESS_RETURN_IF_ERROR(
      context_.record(stream, "vision.patches", workspace_.patches, rows, shape_.patch_stride));

  LinearParams embed =
      dense_linear(context_, workspace_.patches, weights_.patch_emb, workspace_.x, rows);
  embed.residual = weights_.pos_emb;
  embed.residual_stride = shape_.dim;
  embed.residual_rows = shape_.patches_per_crop;
  GAPLESS_RETURN_IF_ERROR(context_.kernels->linear(stream, embed));
  return context_.record(stream, "vision.patch_embedding", workspace_.x, rows, shape_.dim);
}

Status VisionEncoder::run_block(Stream& stream, const VisionBlockWeights& block,
                                int num_crops) const {
  Kernels& kernels = *context_.kernels;
  const int rows = num_crops * shape_.patches_per_crop;
  const VisionWorkspace& w = workspace_;

  GAPLESS_RETURN_IF_ERROR(
      kernels.layer_norm(stream, dense_layer_norm(w.x, block.ln1, w.norm, rows)));
  GAPLESS_RETURN_IF_ERROR(
      kernels.linear(stream, dense_linear(context_, w.norm, block.qkv, w.qkv, rows)));
  VisionAttentionParams attention;
  attention.qkv = w.qkv;
  attention.out = w.attention;
  attention.num_crops = num_crops;
  attention.seq_len = shape_.patches_per_crop;
  attention.num_heads = shape_.num_heads;
  attention.head_dim = shape_.head_dim;
  GAPLESS_RETURN_IF_ERROR(kernels.vision_attention(stream, attention));
  GAPLESS_RETURN_IF_ERROR(
      kernels.linear(stream, residual_linear(context_, w.attention, block.proj, w.x, rows)));

  GAPLESS_RETURN_IF_ERROR(
      kernels.layer_norm(stream, dense_layer_norm(w.x, block.ln2, w.norm, rows)));
  LinearParams fc1 = dense_linear(context_, w.norm, block.fc1, w.inner, rows);
  fc1.activation = Activation::kGeluTanh;
  GAPLESS_RETURN_IF_ERROR(kernels.linear(stream, fc1));
  return kernels.linear(stream, residual_linear(context_, w.inner, block.fc2, w.x, rows));
}

Status VisionEncoder::encode(Stream& stream, const std::uint8_t* crops, int num_crops,
                             void* features) const {
  const int rows = num_crops * shape_.patches_per_crop;
  GAPLESS_RETURN_IF_ERROR(embed_patches(stream, crops, num_crops));
  for (int i = 0; i < shape_.num_layers; ++i) {
    GAPLESS_RETURN_IF_ERROR(
        run_block(stream, weights_.blocks[static_cast<std::size_t>(i)], num_crops));
    GAPLESS_RETURN_IF_ERROR(
        context_.record(stream, "vision.block", i, workspace_.x, rows, shape_.dim));
  }
  GAPLESS_RETURN_IF_ERROR(context_.kernels->layer_norm(
      stream, dense_layer_norm(workspace_.x, weights_.post_ln, features, rows)));
  return context_.record(stream, "vision.post_ln", features, rows, shape_.dim);
}

}  // namespace gapless
