// A small configuration for tests, and its tensors.
#pragma once

#include <algorithm>

#include "model/moondream/model_config.h"
#include "model/moondream/tensors.h"
#include "weights/test_files.h"

namespace gapless::testing_config {

// Moondream's shape in very small: about 50 thousand parameters.
inline ModelConfig very_small_config() {
  ModelConfig config;
  config.text = {.dim = 32,
                 .ff_dim = 64,
                 .n_layers = 2,
                 .vocab_size = 96,
                 .max_context = 64,
                 .n_heads = 4,
                 .n_kv_heads = 4};
  config.vision = {.enc_dim = 24,
                   .enc_patch_size = 4,
                   .enc_n_layers = 2,
                   .enc_ff_dim = 40,
                   .enc_n_heads = 2,
                   .proj_inner_dim = 48,
                   .proj_out_dim = 32,
                   .crop_size = 20,
                   .overlap_margin = 1};
  config.region = {.dim = 32,
                   .coord_feat_dim = 16,
                   .coord_out_dim = 64,
                   .size_feat_dim = 32,
                   .size_out_dim = 128,
                   .inner_dim = 48};
  TokenizerConfig& tokenizer = config.tokenizer;
  tokenizer.caption_short = TokenizerConfig::ids({1, 10, 2, 11, 3});
  tokenizer.caption_normal = TokenizerConfig::ids({1, 10, 2, 12, 3});
  tokenizer.caption_long = {};
  tokenizer.query = {TokenizerConfig::ids({1, 13, 2}), TokenizerConfig::ids({3, 3})};
  tokenizer.detect = {TokenizerConfig::ids({1, 14, 2}), TokenizerConfig::ids({3})};
  tokenizer.point = {TokenizerConfig::ids({1, 15, 2}), TokenizerConfig::ids({3})};
  return config;
}

// As a checkpoint has them, in the published or in the older naming.
inline testing_files::Tensors tensors_of(const ModelConfig& config, TensorDType dtype,
                                         bool legacy = false) {
  testing_files::Tensors tensors;
  for (const WeightSpec& spec : weight_specs(config)) {
    tensors.push_back({legacy ? spec.legacy_name : spec.name, dtype, spec.shape});
    if (legacy && spec.legacy_transposed) std::ranges::reverse(tensors.back().shape);
  }
  return tensors;
}

}  // namespace gapless::testing_config
