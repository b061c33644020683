// The configuration of a model of the Moondream family, read from its config.json.
//
// Defaults are those of the Moondream 2 release of 2025-06-21; a field that the file leaves out
// takes them. (The Moondream reference has the same defaults.)
//
// Token ids: the config.json files that circulate with Moondream checkpoints still carry the ids of
// the older tokenizer (50256, 198, ...), so a file's "tokenizer" section counts only when the file
// says, with "gapless": {"format": 1}, that it was written for this program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/moondream/numerics.h"
#include "text/prompt_config.h"

namespace gapless {

// From start_layer on, experts stand where the dense feed-forward was. num_experts 0: nowhere.
struct MoeConfig {
  int num_experts = 0;
  int start_layer = 0;
  int experts_per_token = 0;
  int expert_inner_dim = 0;

  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

struct TextConfig {
  int dim = 2048;
  int ff_dim = 8192;  // a file without it: 4 * dim
  int n_layers = 24;
  int vocab_size = 51200;
  int max_context = 2048;
  int n_heads = 32;
  int n_kv_heads = 32;  // equal to n_heads: grouped queries are refused
  double rope_theta = 10000;
  MoeConfig moe;
  bool tau_attn = false;  // query and value heads are scaled (HeadScales in kernels.h)

  bool has_experts(int layer) const { return moe.num_experts > 0 && layer >= moe.start_layer; }
  int head_dim() const { return dim / n_heads; }
  // The first half of each head is rotated.
  int rotary_dim() const { return head_dim() / 2; }

  friend bool operator==(const TextConfig&, const TextConfig&) = default;
};

struct VisionConfig {
  int enc_dim = 1152;
  int enc_patch_size = 14;
  int enc_n_layers = 27;
  int enc_ff_dim = 4304;
  int enc_n_heads = 16;
  int proj_inner_dim = 8192;
  int proj_out_dim = 2048;  // equal to text.dim
  int crop_size = 378;
  int in_channels = 3;
  int max_crops = 12;
  int overlap_margin = 4;  // patches

  int head_dim() const { return enc_dim / enc_n_heads; }
  int grid() const { return crop_size / enc_patch_size; }   // patches per side of a crop
  int num_image_tokens() const { return grid() * grid(); }  // positions of an image in a prompt
  int patch_values() const { return in_channels * enc_patch_size * enc_patch_size; }

  friend bool operator==(const VisionConfig&, const VisionConfig&) = default;
};

struct RegionConfig {
  int dim = 2048;            // equal to text.dim
  int coord_feat_dim = 256;  // cosines and sines of one coordinate
  int coord_out_dim = 1024;  // bins
  int size_feat_dim = 512;
  int size_out_dim = 2048;       // bins of the width, then of the height
  int inner_dim = 8192;          // means nothing for linear decoders
  bool linear_decoders = false;  // "decoder_arch": "linear": one product each, not two
  bool use_ln = false;           // the decoders read a normalised hidden state
  bool linear_sizes =
      false;  // a size is bin / bins, as a coordinate may be; else 2^(10 bin / (bins - 1) - 10)

  friend bool operator==(const RegionConfig&, const RegionConfig&) = default;
};

struct ModelConfig {
  TextConfig text;
  VisionConfig vision;
  RegionConfig region;
  TokenizerConfig tokenizer;
  Numerics numerics;

  // Positions that see each other both ways: bos and the image.
  int prefix_len() const { return 1 + vision.num_image_tokens(); }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

inline ModelConfig moondream2_config() {
  return ModelConfig();
}

// Moondream 3 and 3.1.
ModelConfig moondream3_config();

// Moondream 2 of January 2025, of March and April 2025, and Moondream 0.5B. They have the tokenizer before June's, and
// no tokens for coordinates and sizes.
ModelConfig moondream2_january_config();
ModelConfig moondream2_march_config();
ModelConfig moondream_half_billion_config();

// Parses and validates. `name` begins every error. What the file does not say is as in `base`.
StatusOr<ModelConfig> parse_model_config(std::string_view json, std::string_view name,
                                         const ModelConfig& base = moondream2_config());

// Whether the file says "gapless": {"format": 1}.
StatusOr<bool> is_made_for_gapless(std::string_view json, std::string_view name);

// The first size in which `found`, of the file `name`, differs from what `whose` model has. A context may be
// shorter.
Status expect_sizes(const ModelConfig& found, const ModelConfig& expected, std::string_view name,
                    std::string_view whose);

// Sizes positive and bounded, divisible where they must be, equal where they must be; token ids
// inside of the vocabulary. The error names the field.
Status validate_model_config(const ModelConfig& config, std::string_view name);

// A config.json that parse_model_config turns into the same configuration, token ids included.
std::string model_config_to_json(const ModelConfig& config);

}  // namespace gapless
