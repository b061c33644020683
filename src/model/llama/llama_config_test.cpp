#include "model/llama/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/llama/tensors.h"
#include "model/model_source.h"
#include "model/registry.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_files::TemporaryFolder;

constexpr std::string_view kSmall = R"("architectures": ["LlamaForCausalLM"], "hidden_size": 64,
  "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 32, "vocab_size": 320, "max_position_embeddings": 512, "rms_norm_eps": 1e-5)";

StatusOr<LlamaConfig> parse(std::string_view more) {
  return parse_llama_config(fmt::format("{{{}{}{}}}", kSmall, more.empty() ? "" : ", ", more),
                            "config.json");
}

std::string error_with(std::string_view more) {
  const auto config = parse(more);
  EXPECT_FALSE(config.ok()) << more;
  return config.ok() ? "" : config.status().message();
}

TEST(LlamaConfigTest, PublishedShapes) {
  const auto count = [](std::string_view name) {
    std::int64_t parameters = 0;
    for (const WeightSpec& spec : weight_specs(published_llama(name).value())) {
      parameters += spec.num_elements();
    }
    return parameters;
  };
  // As their model cards have it.
  EXPECT_EQ(count("llama3-8b"), 8'030'261'248);
  EXPECT_EQ(count("llama3-1b"), 1'235'814'400);
  EXPECT_EQ(count("qwen3-8b"), 8'190'735'360);
  EXPECT_EQ(count("qwen3-1.7b"), 1'720'574'976);
  EXPECT_THAT(published_llama("llama2").status().message(), HasSubstr("llama3-8b"));
}

TEST(LlamaConfigTest, DefaultsAndOptions) {
  const LlamaConfig config = parse("").value();
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_FALSE(config.qk_norm || config.attention_bias || config.mlp_bias ||
               config.tied_embeddings);
  const LlamaConfig other =
      parse(R"("model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": true,
               "mlp_bias": true, "tie_word_embeddings": true, "rope_theta": 5e5,
               "rope_scaling": {"type": "linear", "factor": 2.0}, "eos_token_id": [7, 9],
               "use_sliding_window": false, "layer_types": ["full_attention"])")
          .value();
  EXPECT_TRUE(other.qk_norm && other.attention_bias && other.mlp_bias && other.tied_embeddings);
  EXPECT_EQ(other.rope_theta, 5e5);
  EXPECT_EQ(other.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_THAT(other.eos_ids, ElementsAre(TokenId(7), TokenId(9)));
}

TEST(LlamaConfigTest, WhatIsWrittenIsRead) {
  for (const std::string& name : published_llama_names()) {
    const LlamaConfig config = published_llama(name).value();
    const auto read = parse_llama_config(llama_config_to_json(config), name);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(*read, config) << name;
  }
  LlamaConfig yarn = published_llama("qwen3-1.7b").value();
  yarn.rope_scaling = {.kind = RopeScaling::Kind::kYarn,
                       .factor = 4,
                       .original_context = 32768,
                       .beta_fast = 24,
                       .mscale = 1,
                       .mscale_all_dim = 0.5,
                       .truncate = false};
  EXPECT_EQ(parse_llama_config(llama_config_to_json(yarn), "yarn").value(), yarn);
}

TEST(LlamaConfigTest, WhatIsNotComputedIsRefusedByName) {
  EXPECT_THAT(error_with(R"("hidden_act": "gelu")"), HasSubstr("config.json: hidden_act is gelu"));
  EXPECT_THAT(error_with(R"("use_sliding_window": true)"), HasSubstr("use_sliding_window"));
  EXPECT_THAT(error_with(R"("layer_types": ["sliding_attention"])"), HasSubstr("layer_types"));
  EXPECT_THAT(error_with(R"("quantization_config": {"quant_method": "awq"})"),
              HasSubstr("--weights fp8"));
  EXPECT_THAT(error_with(R"("rope_scaling": {"rope_type": "longrope", "factor": 2})"),
              HasSubstr("rope_type is longrope, which gapless does not compute; default, linear"));
  EXPECT_THAT(error_with(R"("rope_scaling": {"rope_type": "yarn"})"), HasSubstr("factor"));
  EXPECT_THAT(error_with(R"("rope_scaling": {"rope_type": "linear", "factor": 0})"),
              HasSubstr("a number above 0"));
  EXPECT_THAT(error_with(R"("rope_parameters": {"partial_rotary_factor": 0.5})"),
              HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(error_with(R"("rope_theta": 1)"), HasSubstr("rope_theta"));
  EXPECT_THAT(error_with(R"("eos_token_id": "x")"), HasSubstr("eos_token_id"));
  EXPECT_THAT(error_with(R"("eos_token_id": [1, 2, 3, 4, 5])"), HasSubstr("at most 4"));
}

TEST(LlamaConfigTest, SizesThatDoNotFitAreRefused) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text = fmt::format("{{{}}}", kSmall);
    text.replace(text.find(from), from.size(), to);
    return parse_llama_config(text, "config.json").status().message();
  };
  EXPECT_THAT(
      with(R"("head_dim": 32)", R"("head_dim": 96)"),
      HasSubstr("head_dim is 96, which gapless does not compute; heads of 32, 64, 128 run"));
  EXPECT_THAT(with(R"("num_key_value_heads": 2)", R"("num_key_value_heads": 3)"),
              HasSubstr("num_key_value_heads = 3 does not divide num_attention_heads = 4"));
  EXPECT_THAT(with(R"("hidden_size": 64)", R"("hidden_size": 65)"), HasSubstr("multiples of 16"));
  EXPECT_THAT(with(R"("vocab_size": 320)", R"("vocab_size": 0)"), HasSubstr("vocab_size"));
  EXPECT_THAT(with(R"("num_hidden_layers": 2)", R"("layers": 2)"), HasSubstr("num_hidden_layers"));
}

TEST(LlamaConfigTest, GenerationConfigHasTheLastWordOnEnds) {
  const TemporaryFolder folder;
  folder.write("config.json", fmt::format(R"({{{}, "eos_token_id": 3}})", kSmall));
  EXPECT_THAT(read_llama_config(folder.path())->eos_ids, ElementsAre(TokenId(3)));
  folder.write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_THAT(read_llama_config(folder.path())->eos_ids, ElementsAre(TokenId(3)));
  folder.write("generation_config.json", R"({"eos_token_id": [5, 3]})");
  EXPECT_THAT(read_llama_config(folder.path())->eos_ids, ElementsAre(TokenId(5), TokenId(3)));
  folder.write("generation_config.json", R"({"eos_token_id": 320})");
  EXPECT_THAT(read_llama_config(folder.path()).status().message(),
              HasSubstr("eos_token_id 320 of a vocabulary of 320"));
}

TEST(LlamaConfigTest, TheRegistryLeadsHere) {
  const TemporaryFolder folder;
  for (const std::string_view named :
       {R"("architectures": ["LlamaForCausalLM"])", R"("model_type": "llama")",
        R"("architectures": ["Qwen3ForCausalLM"])", R"("model_type": "qwen3")"}) {
    folder.write("config.json", fmt::format("{{{}}}", named));
    EXPECT_EQ(choose_family(folder.path()).value(), ModelFamily::kLlama) << named;
    EXPECT_THAT(find_model(folder.path().string()).status().message(), HasSubstr("hidden_size"));
  }
  EXPECT_TRUE(find_model("random:qwen3-1.7b:3")->llama->qk_norm);
  EXPECT_THAT(
      find_model("random:llama9").status().message(),
      HasSubstr(
          "moondream-0.5b-small, moondream3-small, llama3-8b, llama3-1b, qwen3-8b, qwen3-1.7b"));
}

// Files of tied models may hold the matrix twice.
TEST(LlamaTensors, ASecondCopyOfTiedEmbeddingsIsNotSurplus) {
  LlamaConfig config = parse(R"("tie_word_embeddings": true)").value();
  const TemporaryFolder folder;
  testing_files::Tensors tensors;
  for (const WeightSpec& spec : weight_specs(config)) {
    tensors.push_back({spec.name, TensorDType::kBF16, spec.shape});
  }
  testing_files::write_weights(folder.path() / "model.safetensors", tensors);
  EXPECT_TRUE(WeightSource::open(folder.path(), weight_specs(config)).ok());
  tensors.push_back({"lm_head.weight", TensorDType::kBF16, {320, 64}});
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", TensorDType::kF32, {16}});
  testing_files::write_weights(folder.path() / "model.safetensors", tensors);
  const auto twice = WeightSource::open(folder.path(), weight_specs(config));
  EXPECT_TRUE(twice.ok()) << twice.status().to_string();
  tensors.push_back({"lm_head.bias", TensorDType::kBF16, {320}});
  testing_files::write_weights(folder.path() / "model.safetensors", tensors);
  EXPECT_THAT(WeightSource::open(folder.path(), weight_specs(config)).status().message(),
              HasSubstr("'lm_head.bias' is not one of this model's"));
  config.tied_embeddings = false;
  EXPECT_THAT(WeightSource::open(folder.path(), weight_specs(config)).status().message(),
              HasSubstr("'lm_head.bias' is not"));
}

// What a list says of the device: q, k and v lie one behind the other, and so do gate and up.
TEST(LlamaTensors, JoinedProductsAreOneMatrix) {
  LlamaConfig config = parse(R"("attention_bias": true, "mlp_bias": true)").value();
  const TextWeights text = describe_text_weights(config);
  ASSERT_EQ(text.blocks.size(), 2u);
  const DecoderBlock& block = text.blocks[1];
  EXPECT_EQ(block.qkv.out, 128 + 2 * 64);
  EXPECT_EQ(block.qkv.in, 64);
  EXPECT_NE(block.qkv.bias, nullptr);
  EXPECT_EQ(block.ff.up.out, 2 * 112);  // padded to a multiple of 16
  EXPECT_EQ(block.ff.down.in, 112);
  EXPECT_EQ(block.q_norm.gamma, nullptr);
  EXPECT_EQ(text.lm_head.out, 320);

  const TensorLayout layout = lay_out_tensors(weight_specs(config), DType::kF32);
  const auto at = [&](std::string_view name) -> const TensorPlacement& {
    const auto found = std::ranges::find(layout.tensors, name, &TensorPlacement::name);
    EXPECT_NE(found, layout.tensors.end()) << name;
    return *found;
  };
  const std::string attn = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  EXPECT_EQ(at(attn + "k_proj.weight").offset_bytes,
            at(attn + "q_proj.weight").offset_bytes + 128 * 64 * 4);
  EXPECT_EQ(at(attn + "v_proj.bias").offset_bytes, at(attn + "q_proj.bias").offset_bytes + 192 * 4);
  EXPECT_EQ(at(mlp + "up_proj.weight").offset_bytes,
            at(mlp + "gate_proj.weight").offset_bytes + 112 * 64 * 4);
  EXPECT_EQ(at(mlp + "up_proj.bias").offset_bytes,
            at(mlp + "gate_proj.bias").offset_bytes + 112 * 4);
  for (std::size_t i = 1; i < layout.tensors.size(); ++i) {
    const TensorPlacement& before = layout.tensors[i - 1];
    const std::size_t end =
        before.offset_bytes + static_cast<std::size_t>(before.device_rows * before.row_stride) * 4;
    EXPECT_GE(layout.tensors[i].offset_bytes, end) << layout.tensors[i].name;
  }
  config.tied_embeddings = true;
  EXPECT_EQ(weight_specs(config).size() + 1, layout.tensors.size());
}

}  // namespace
}  // namespace gapless
