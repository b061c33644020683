#include "model/moondream/model_config.h"

#include <algorithm>

#include "base/limits.h"
#include "step/row_state.h"

namespace gapless {
namespace {

class Validator {
 public:
  explicit Validator(std::string_view name) : name_(name) {}
  const Status& status() const { return status_; }

  void in_range(const char* field, std::int64_t value, std::int64_t min, std::int64_t max) {
    if (value < min || value > max)
      fail("{} = {} must be between {} and {}", field, value, min, max);
  }
  void multiple_of(const char* field, int value, const char* what, int divisor) {
    if (status_.ok() && value % divisor != 0) {
      fail("{} = {} must be a multiple of {} = {}", field, value, what, divisor);
    }
  }
  void equal(const char* field, int value, const char* what, int expected) {
    if (value != expected) fail("{} = {} must equal {} = {}", field, value, what, expected);
  }
  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!status_.ok()) return;  // the first one counts
    status_ = invalid_argument("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string name_;
  Status status_;
};

void validate_text(const TextConfig& text, Validator& check) {
  check.in_range("text.dim", text.dim, 1, kMaxModelDim);
  check.in_range("text.ff_dim", text.ff_dim, 1, kMaxModelDim);
  check.in_range("text.n_layers", text.n_layers, 1, kMaxModelLayers);
  check.in_range("text.vocab_size", text.vocab_size, 1, kMaxVocabSize);
  check.in_range("text.max_context", text.max_context, 1, kMaxContext);
  check.in_range("text.n_heads", text.n_heads, 1, text.dim);
  check.equal("text.n_kv_heads", text.n_kv_heads, "text.n_heads", text.n_heads);
  check.multiple_of("text.dim", text.dim, "text.n_heads", text.n_heads);
  // Half of a head is rotated, in pairs.
  if (check.status().ok()) check.multiple_of("text.dim / text.n_heads", text.head_dim(), "", 4);
  if (!(text.rope_theta >= 1 && text.rope_theta <= 1e12)) {
    check.fail("text.rope_theta = {} must be between 1 and 1e12", text.rope_theta);
  }
}

void validate_experts(const MoeConfig& moe, int num_layers, Validator& check) {
  check.in_range("text.moe.num_experts", moe.num_experts, 0, kMaxExperts);
  if (moe.num_experts == 0) return;
  check.in_range("text.moe.start_layer", moe.start_layer, 0, num_layers);
  check.in_range("text.moe.experts_per_token", moe.experts_per_token, 1,
                 std::min(moe.num_experts, kMaxExpertsPerToken));
  check.in_range("text.moe.expert_inner_dim", moe.expert_inner_dim, 1, kMaxModelDim);
}

void validate_vision(const VisionConfig& vision, int text_dim, Validator& check) {
  check.in_range("vision.enc_dim", vision.enc_dim, 1, kMaxModelDim);
  check.in_range("vision.enc_ff_dim", vision.enc_ff_dim, 1, kMaxModelDim);
  check.in_range("vision.enc_n_layers", vision.enc_n_layers, 1, kMaxModelLayers);
  check.in_range("vision.enc_n_heads", vision.enc_n_heads, 1, vision.enc_dim);
  check.multiple_of("vision.enc_dim", vision.enc_dim, "vision.enc_n_heads", vision.enc_n_heads);
  check.in_range("vision.proj_inner_dim", vision.proj_inner_dim, 1, kMaxModelDim);
  check.equal("vision.proj_out_dim", vision.proj_out_dim, "text.dim", text_dim);
  if (vision.in_channels != 3) check.fail("vision.in_channels = {} must be 3", vision.in_channels);
  check.in_range("vision.enc_patch_size", vision.enc_patch_size, 1, kMaxCropSide);
  check.in_range("vision.crop_size", vision.crop_size, 1, kMaxCropSide);
  check.multiple_of("vision.crop_size", vision.crop_size, "vision.enc_patch_size",
                    vision.enc_patch_size);
  check.in_range("vision.max_crops", vision.max_crops, 1, kMaxTilesPerImage);
  if (!check.status().ok()) return;
  check.in_range("vision.overlap_margin", vision.overlap_margin, 0, (vision.grid() - 1) / 2);
}

void validate_region(const RegionConfig& region, int text_dim, Validator& check) {
  check.equal("region.dim", region.dim, "text.dim", text_dim);
  check.in_range("region.coord_feat_dim", region.coord_feat_dim, 2, kMaxModelDim);
  check.in_range("region.coord_out_dim", region.coord_out_dim, 2, kMaxModelDim);
  check.in_range("region.size_feat_dim", region.size_feat_dim, 2, kMaxModelDim);
  check.in_range("region.size_out_dim", region.size_out_dim, 4, kMaxModelDim);
  check.in_range("region.inner_dim", region.inner_dim, 1, kMaxModelDim);
  for (const auto& [field, value] : {std::pair("region.coord_feat_dim", region.coord_feat_dim),
                                     std::pair("region.size_feat_dim", region.size_feat_dim),
                                     std::pair("region.size_out_dim", region.size_out_dim)}) {
    if (value % 2 != 0) check.fail("{} = {} must be even", field, value);
  }
}

void validate_token_ids(const TokenizerConfig& tokenizer, int vocab_size, Validator& check) {
  for (const auto& [field, id] :
       {std::pair("bos_id", tokenizer.bos_id), std::pair("eos_id", tokenizer.eos_id),
        std::pair("coord_id", tokenizer.coord_id), std::pair("size_id", tokenizer.size_id)}) {
    if (!id.valid()) check.fail("tokenizer.{} is missing", field);
  }
  const std::vector<TokenId> ids = tokenizer.all_ids();
  if (!check.status().ok()) return;
  const auto [lowest, highest] = std::ranges::minmax(ids);
  if (lowest.value < 0 || highest.value >= vocab_size) {
    check.fail(
        "tokenizer: the templates use ids {} to {}, but text.vocab_size is {}; a model with its "
        "own "
        "vocabulary must give its ids under \"tokenizer\" and say \"gapless\": {{\"format\": 1}}",
        lowest.value, highest.value, vocab_size);
  }
  if (tokenizer.reasoning_denied.size() >= kMaxAutomatonEdges) {
    check.fail("tokenizer: {} tokens are denied while it reasons, at most {} may be",
               tokenizer.reasoning_denied.size(), kMaxAutomatonEdges - 1);
  }
}

// GPT-2's ids. Source: config.py and moondream.py of vikhyat/moondream, January to April 2025.
TokenizerConfig older_tokenizer_config() {
  TokenizerConfig tokenizer = TokenizerConfig::without_skills();
  tokenizer.bos_id = tokenizer.eos_id = TokenId(50256);
  // Of 51200 rows the tokenizer has 50295 tokens; these two ids are none of them.
  tokenizer.coord_id = TokenId(51198);
  tokenizer.size_id = TokenId(51199);
  tokenizer.any_token_is_coord = true;
  tokenizer.caption_short = TokenizerConfig::ids({198, 198, 16438, 8305, 25});
  tokenizer.caption_normal = TokenizerConfig::ids({198, 198, 24334, 1159, 25});
  tokenizer.query = {TokenizerConfig::ids({198, 198, 24361, 25}),
                     TokenizerConfig::ids({198, 198, 33706, 25})};
  tokenizer.detect = {TokenizerConfig::ids({198, 198, 47504, 25}), TokenizerConfig::ids({628})};
  tokenizer.point = {TokenizerConfig::ids({198, 198, 12727, 25}), TokenizerConfig::ids({628})};
  tokenizer.object_leading_space = false;
  return tokenizer;
}

}  // namespace

ModelConfig moondream3_config() {
  ModelConfig config;
  config.text.max_context = 32768;
  config.text.rope_theta = 1'500'000;
  config.text.moe = {
      .num_experts = 64, .start_layer = 4, .experts_per_token = 8, .expert_inner_dim = 1024};
  config.text.tau_attn = true;
  config.region.linear_decoders = true;
  config.region.use_ln = true;
  config.tokenizer.query.suffix = TokenizerConfig::ids({3});
  config.tokenizer.query_reasoning = TokenizerConfig::ids({4});
  config.tokenizer.reasoning_denied.clear();
  config.tokenizer.segment = {TokenizerConfig::ids({1, 17374, 2}), TokenizerConfig::ids({3})};
  return config;
}

ModelConfig moondream2_january_config() {
  ModelConfig config;
  config.region.linear_sizes = true;
  config.numerics.coord_divisor = CoordDivisor::kNumBins;
  config.tokenizer = older_tokenizer_config();
  return config;
}

ModelConfig moondream2_march_config() {
  ModelConfig config;
  config.tokenizer = older_tokenizer_config();
  config.tokenizer.caption_long = TokenizerConfig::ids({198, 198, 14617, 8305, 25});
  config.tokenizer.object_leading_space = true;
  config.tokenizer.question_leading_space = true;
  return config;
}

ModelConfig moondream_half_billion_config() {
  ModelConfig config = moondream2_january_config();
  config.text.dim = 1024;
  config.text.ff_dim = 4096;
  config.text.n_heads = 16;
  config.text.n_kv_heads = 16;
  config.vision.enc_dim = 720;
  config.vision.enc_ff_dim = 2690;
  config.vision.enc_n_heads = 10;
  config.vision.proj_out_dim = 1024;
  config.region.dim = 1024;
  return config;
}

Status validate_model_config(const ModelConfig& config, std::string_view name) {
  Validator check(name);
  validate_text(config.text, check);
  validate_experts(config.text.moe, config.text.n_layers, check);
  validate_vision(config.vision, config.text.dim, check);
  validate_region(config.region, config.text.dim, check);
  validate_token_ids(config.tokenizer, config.text.vocab_size, check);
  if (check.status().ok() && config.prefix_len() >= config.text.max_context) {
    check.fail("text.max_context = {} leaves no room after the {} positions of an image",
               config.text.max_context, config.prefix_len());
  }
  return check.status();
}

}  // namespace gapless
