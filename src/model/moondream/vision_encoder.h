// The vision encoder: crops in, one feature vector per patch out.
//
// Pre-LN transformer, sequential residual, full attention inside each crop; LayerNorm eps 1e-5,
// tanh GELU, softmax scale 1/sqrt(head_dim) (Moondream reference, June 2025).
#pragma once

#include <cstdint>

#include "model/model_context.h"
#include "model/model_shape.h"
#include "model/moondream/model_weights.h"
#include "model/workspace.h"

namespace gapless {

class VisionEncoder {
 public:
  // Everything is used by reference for the encoder's life. lut_dev: [256] T, byte to normalised
  // value.
  VisionEncoder(const ModelContext& context, const VisionShape& shape, int crop_size,
                int patch_size, const VisionWeights& weights, const VisionWorkspace& workspace,
                const void* lut_dev)
      : context_(context),
        shape_(shape),
        crop_size_(crop_size),
        patch_size_(patch_size),
        weights_(weights),
        workspace_(workspace),
        lut_dev_(lut_dev) {}

  // crops: [num_crops, crop, crop, 3] bytes; features: [num_crops*729, E] T. num_crops is at most
  // StepLimits::max_crops_per_encode.
  Status encode(Stream& stream, const std::uint8_t* crops, int num_crops, void* features) const;

  // Tunes the products for 1 to max_crops crops (Kernels::tune_linear; start-up).
  Status tune(Stream& stream, int max_crops) const;

 private:
  // Residuals alternate between VisionWorkspace::x and after_attention: a product whose output is
  // its own residual costs the backend a copy.
  // Into VisionWorkspace::norm, as the product that reads it wants it.
  NormParams norm_for(const LinearWeights& product, const void* x, const NormWeights& weights,
                      int rows) const;
  LinearParams patch_embedding(int rows) const;
  LinearParams qkv(const VisionBlockWeights& block, int rows) const;
  LinearParams projection(const VisionBlockWeights& block, int rows) const;
  LinearParams mlp_in(const VisionBlockWeights& block, int rows) const;
  LinearParams mlp_out(const VisionBlockWeights& block, int rows) const;

  Status embed_patches(Stream& stream, const std::uint8_t* crops, int num_crops) const;
  Status run_block(Stream& stream, const VisionBlockWeights& block, int num_crops) const;

  const ModelContext& context_;
  const VisionShape& shape_;
  int crop_size_;
  int patch_size_;
  const VisionWeights& weights_;
  const VisionWorkspace& workspace_;
  const void* lut_dev_;
};

}  // namespace gapless
