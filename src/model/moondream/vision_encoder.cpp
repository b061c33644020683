#include "model/moondream/vision_encoder.h"

#include <vector>

#include "kernels/dense_ops.h"
#include "kernels/restored_linear.h"

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

  GAPLESS_RETURN_IF_ERROR(context_.kernels->linear(stream, patch_embedding(rows)));
  return context_.record(stream, "vision.patch_embedding", workspace_.x, rows, shape_.dim);
}

Status VisionEncoder::run_block(Stream& stream, const VisionBlockWeights& block,
                                int num_crops) const {
  Kernels& kernels = *context_.kernels;
  const int rows = num_crops * shape_.patches_per_crop;
  const VisionWorkspace& w = workspace_;

  GAPLESS_RETURN_IF_ERROR(kernels.norm(stream, norm_for(block.qkv, w.x, block.ln1, rows)));
  GAPLESS_RETURN_IF_ERROR(restored_linear(kernels, stream, qkv(block, rows)));
  VisionAttentionParams attention;
  attention.qkv = w.qkv;
  attention.out = w.attention;
  attention.num_crops = num_crops;
  attention.seq_len = shape_.patches_per_crop;
  attention.num_heads = shape_.num_heads;
  attention.head_dim = shape_.head_dim;
  GAPLESS_RETURN_IF_ERROR(kernels.vision_attention(stream, attention));
  GAPLESS_RETURN_IF_ERROR(restored_linear(kernels, stream, projection(block, rows)));

  GAPLESS_RETURN_IF_ERROR(
      kernels.norm(stream, norm_for(block.fc1, w.after_attention, block.ln2, rows)));
  GAPLESS_RETURN_IF_ERROR(restored_linear(kernels, stream, mlp_in(block, rows)));
  if (block.fc2.fp8 != nullptr) {
    GAPLESS_RETURN_IF_ERROR(
        kernels.rows_to_fp8(stream, in_place_rows_to_fp8(*context_.kernels, w.inner, block.fc2.in,
                                                         block.fc2.in, w.row_scales, rows)));
  }
  return restored_linear(kernels, stream, mlp_out(block, rows));
}

NormParams VisionEncoder::norm_for(const LinearWeights& product, const void* x,
                                   const NormWeights& weights, int rows) const {
  const NormParams params = dense_norm(x, weights, workspace_.norm, shape_.dim, rows);
  if (product.fp8 == nullptr) return params;
  return with_fp8_output(*context_.kernels, params, workspace_.row_scales);
}

LinearParams VisionEncoder::patch_embedding(int rows) const {
  LinearParams params =
      dense_linear(*context_.kernels, workspace_.patches, weights_.patch_emb, workspace_.x, rows);
  params.residual = weights_.pos_emb;
  params.residual_stride = shape_.dim;
  params.residual_rows = shape_.patches_per_crop;
  return params;
}

LinearParams VisionEncoder::qkv(const VisionBlockWeights& block, int rows) const {
  return with_fp8_input(
      *context_.kernels,
      dense_linear(*context_.kernels, workspace_.norm, block.qkv, workspace_.qkv, rows),
      workspace_.row_scales);
}

LinearParams VisionEncoder::projection(const VisionBlockWeights& block, int rows) const {
  return residual_linear(*context_.kernels, workspace_.attention, block.proj, workspace_.x,
                         workspace_.after_attention, rows);
}

LinearParams VisionEncoder::mlp_in(const VisionBlockWeights& block, int rows) const {
  LinearParams params =
      dense_linear(*context_.kernels, workspace_.norm, block.fc1, workspace_.inner, rows);
  params.activation = Activation::kGeluTanh;
  return with_fp8_input(*context_.kernels, params, workspace_.row_scales);
}

LinearParams VisionEncoder::mlp_out(const VisionBlockWeights& block, int rows) const {
  return with_fp8_input(*context_.kernels,
                        residual_linear(*context_.kernels, workspace_.inner, block.fc2,
                                        workspace_.after_attention, workspace_.x, rows),
                        workspace_.row_scales);
}

Status VisionEncoder::tune(Stream& stream, int max_crops) const {
  std::vector<int> row_counts;
  for (int crops = 1; crops <= max_crops; ++crops) {
    row_counts.push_back(crops * shape_.patches_per_crop);
  }
  const int rows = row_counts.back();
  const VisionBlockWeights& block = weights_.blocks.front();  // of the same shapes as the others
  for (const LinearParams& params :
       {patch_embedding(rows), qkv(block, rows), projection(block, rows), mlp_in(block, rows),
        mlp_out(block, rows)}) {
    GAPLESS_RETURN_IF_ERROR(context_.kernels->tune_linear(stream, params, row_counts));
  }
  return ok_status();
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
  GAPLESS_RETURN_IF_ERROR(context_.kernels->norm(
      stream, dense_norm(workspace_.x, weights_.post_ln, features, shape_.dim, rows)));
  return context_.record(stream, "vision.post_ln", features, rows, shape_.dim);
}

}  // namespace gapless
