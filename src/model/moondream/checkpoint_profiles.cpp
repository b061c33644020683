// The table of published models. Facts: the public reference code of each release, which names the
// tensors, the tokenizer's repository and the token ids.
#include "model/moondream/checkpoint_profile.h"

namespace gapless {
namespace {

std::vector<TensorMark> moondream2_tensors(std::int64_t text_dim, std::int64_t vision_dim) {
  return {{"text.wte", "text_model.transformer.embd.wte.weight", {51200, text_dim}},
          {"vision.patch_emb.weight",
           "vision_encoder.encoder.model.visual.patch_embed.linear.weight",
           {vision_dim, 588}},
          {"region.coord_decoder.fc1.weight",
           "region_model.coordinate_decoder.fc1.weight",
           {8192, text_dim}}};
}

std::vector<TokenSpelling> starmie_spellings() {
  return {{TokenId(0), "<|endoftext|>"},
          {TokenId(1), "<|md_reserved_0|>"},
          {TokenId(2), "<|md_reserved_1|>"},
          {TokenId(3), "<|md_reserved_2|>"},
          {TokenId(15381), "query"}};
}

std::vector<TokenSpelling> older_spellings() {
  return {{TokenId(50256), "<|endoftext|>"},
          {TokenId(0), "!"},
          {TokenId(198), "\n"},
          {TokenId(628), "\n\n"},
          {TokenId(24361), "Question"}};
}

std::vector<CheckpointProfile> make_profiles() {
  constexpr std::string_view kStarmie = "moondream/starmie-v1";
  constexpr std::string_view kMoondream2 = "vikhyatk/moondream2";
  std::vector<CheckpointProfile> rows;
  rows.push_back({.title = "Moondream 2 of June 2025",
                  .marks = moondream2_tensors(2048, 1152),
                  .code_tokenizer = kStarmie,
                  .stored_as = TensorDType::kBF16,
                  .spellings = starmie_spellings(),
                  .weights_from = "vikhyatk/moondream2, revision 2025-06-21",
                  .tokenizer_from = kStarmie,
                  .runs = true,
                  .config = moondream2_config()});
  // Both releases name the same tokenizer; how a size is made of its bin tells them apart.
  rows.push_back({.title = "Moondream 2 of January 2025",
                  .marks = moondream2_tensors(2048, 1152),
                  .code_tokenizer = kMoondream2,
                  .code_has = "/ size_logits.size(-1)",
                  .stored_as = TensorDType::kF16,
                  .spellings = older_spellings(),
                  .weights_from = "vikhyatk/moondream2, revision 2025-01-09",
                  .tokenizer_from = kMoondream2,
                  .runs = true,
                  .config = moondream2_january_config()});
  rows.push_back({.title = "Moondream 2 of March and April 2025",
                  .marks = moondream2_tensors(2048, 1152),
                  .code_tokenizer = kMoondream2,
                  .code_has = "torch.pow(2.0",
                  .stored_as = TensorDType::kF16,
                  .spellings = older_spellings(),
                  .weights_from = "vikhyatk/moondream2, revisions 2025-03-27 and 2025-04-14",
                  .tokenizer_from = kMoondream2,
                  .runs = true,
                  .config = moondream2_march_config()});
  rows.push_back({.title = "Moondream 0.5B",
                  .marks = moondream2_tensors(1024, 720),
                  .code_tokenizer = kMoondream2,
                  .spellings = older_spellings(),
                  .weights_from = "vikhyatk/moondream2",
                  .tokenizer_from = kMoondream2,
                  .runs = true,
                  .config = moondream_half_billion_config()});
  rows.push_back({.title = "Moondream 2 in 4 bits",
                  .marks = {{"text.blocks.0.mlp.fc1.weight.packed", "", {65536, 128}}},
                  .why_not = "its matrices are packed integers"});
  rows.push_back({.title = "Moondream 3 and 3.1",
                  .marks = {{"text.blocks.4.mlp.router.weight",
                             "text_model.transformer.h.4.gate.weight",
                             {64, 2048}},
                            {"region.coord_decoder.weight",
                             "region_model.coordinate_head.weight",
                             {1024, 2048}}},
                  .spellings = starmie_spellings(),
                  .weights_from = "moondream/moondream3-preview, moondream/moondream3.1-9B-A2B",
                  .tokenizer_from = kStarmie,
                  .runs = true,
                  .config = moondream3_config()});
  return rows;
}

}  // namespace

std::span<const CheckpointProfile> checkpoint_profiles() {
  static const std::vector<CheckpointProfile> rows = make_profiles();
  return rows;
}

}  // namespace gapless
