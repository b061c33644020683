#include "model/moondream/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>

#include "model/moondream/tensors.h"
#include "model/moondream/test_config.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using testing_config::very_small_config;

ModelConfig parsed(std::string_view json) {
  return parse_model_config(json, "config.json").value();
}

std::string error_of(std::string_view json) {
  const auto config = parse_model_config(json, "config.json");
  if (config.ok()) return "no error";
  EXPECT_TRUE(config.status().message().starts_with("config.json: ")) << config.status().message();
  return config.status().message();
}

std::int64_t num_parameters(const ModelConfig& config, std::string_view prefix) {
  std::int64_t sum = 0;
  for (const WeightSpec& spec : weight_specs(config)) {
    if (spec.name.starts_with(prefix)) sum += spec.num_elements();
  }
  return sum;
}

TEST(ModelConfig, NothingSaidIsMoondream2) {
  EXPECT_EQ(parsed("{}"), moondream2_config());
  EXPECT_EQ(moondream2_config().prefix_len(), 730);
  EXPECT_EQ(moondream2_config().text.head_dim(), 64);
  EXPECT_EQ(moondream2_config().text.rotary_dim(), 32);
  EXPECT_EQ(moondream2_config().vision.head_dim(), 72);
}

TEST(ModelConfig, Moondream05B) {
  const ModelConfig config = parsed(
      R"({"text": {"dim": 1024, "n_layers": 24, "n_heads": 16},
          "vision": {"enc_dim": 720, "enc_ff_dim": 2690, "enc_n_heads": 10, "proj_out_dim": 1024},
          "region": {"dim": 1024}})");
  EXPECT_EQ(config.text.ff_dim, 4096);
  EXPECT_EQ(config.text.n_kv_heads, 16);
  EXPECT_EQ(num_parameters(config, "model."), 631'889'382);
}

TEST(ModelConfig, SizeOfMoondream2) {
  const ModelConfig config = moondream2_config();
  EXPECT_EQ(num_parameters(config, "model."), 1'927'237'104);
  EXPECT_EQ(num_parameters(config, "model.text."), 1'418'270'720);
  EXPECT_EQ(num_parameters(config, "model.vision."), 448'649'072);
  EXPECT_EQ(num_parameters(config, "model.region."), 60'317'312);
}

TEST(ModelConfig, OldTokenIdsAreNotTrusted) {
  const std::string tokenizer =
      R"("tokenizer": {"bos_id": 50256, "eos_id": 50256, "templates": {
           "caption": {"short": [198, 198, 16438, 8305, 25]},
           "query": {"prefix": [198, 198, 24361, 25], "suffix": [198, 198, 33706, 25]}}})";
  EXPECT_EQ(parsed("{" + tokenizer + "}").tokenizer, TokenizerConfig());
  const ModelConfig ours = parsed("{\"gapless\": {\"format\": 1}, " + tokenizer + "}");
  EXPECT_EQ(ours.tokenizer.eos_id, TokenId(50256));
  EXPECT_EQ(ours.tokenizer.query.prefix, TokenizerConfig::ids({198, 198, 24361, 25}));
  // A skill that is not in the file is one that the model does not have.
  EXPECT_TRUE(ours.tokenizer.caption_long.empty());
  EXPECT_TRUE(ours.tokenizer.detect.prefix.empty());
  EXPECT_THAT(error_of("{\"gapless\": {\"format\": 2}, " + tokenizer + "}"),
              HasSubstr("gapless.format must be between 1 and 1"));
}

TEST(ModelConfig, HuggingFaceWrapper) {
  EXPECT_EQ(parsed(R"({"architectures": ["HfMoondream"], "config": {}})"), moondream2_config());
  EXPECT_EQ(
      parsed(R"({"model_type": "moondream1", "config": {"text": {"n_layers": 5}}})").text.n_layers,
      5);
}

TEST(ModelConfig, WrittenAndReadAgain) {
  const ModelConfig small = very_small_config();
  EXPECT_EQ(parsed(model_config_to_json(small)), small);
  ModelConfig changed = moondream2_config();
  changed.tokenizer.object_leading_space = false;
  changed.text.rope_theta = 1'500'000;
  changed.tokenizer.vocab_size = 50'000;
  changed.tokenizer.gazes = false;
  changed.tokenizer.spellings = {{TokenId(0), "<|endoftext|>"}, {TokenId(9), " caption"}};
  EXPECT_EQ(parsed(model_config_to_json(changed)), changed);
  ModelConfig third = moondream3_config();
  EXPECT_EQ(parsed(model_config_to_json(third)), third);
  for (const NumericsOption& option : numerics_options()) {
    option.set(third.numerics, static_cast<int>(option.choices.size()) - 1);
    EXPECT_EQ(parsed(model_config_to_json(third)), third) << option.name;
    EXPECT_NE(third.numerics, Numerics()) << option.name;
  }
}

TEST(ModelConfig, SaysForWhomItWasWritten) {
  const auto says = [](std::string_view json) {
    return is_made_for_gapless(json, "config.json").value();
  };
  EXPECT_TRUE(says(model_config_to_json(moondream2_config())));
  EXPECT_TRUE(says(R"({"config": {"gapless": {"format": 1}}})"));
  EXPECT_FALSE(says(R"({"model_type": "moondream1", "config": {}})"));
  EXPECT_FALSE(is_made_for_gapless(R"({"gapless": {"format": 2}})", "config.json").ok());
}

TEST(ModelConfig, SizesThatDifferAreNamed) {
  ModelConfig other = moondream2_config();
  EXPECT_TRUE(expect_sizes(other, moondream2_config(), "config.json", "it").ok());
  other.region.inner_dim = 4096;
  EXPECT_EQ(expect_sizes(other, moondream2_config(), "config.json", "it").message(),
            "config.json: region.inner_dim is 4096; it has 8192");
  const auto difference = [](const ModelConfig& found, const ModelConfig& expected) {
    return expect_sizes(found, expected, "config.json", "it").message();
  };
  EXPECT_EQ(difference(moondream3_config(), moondream2_config()),
            "config.json: text.max_context is 32768; it has 2048");
  ModelConfig third = moondream3_config();
  third.text.max_context = 4096;  // as some published files say
  EXPECT_EQ(difference(third, moondream3_config()), "");
  third.text.moe.experts_per_token = 4;
  EXPECT_EQ(difference(third, moondream3_config()),
            "config.json: text.moe.experts_per_token is 4; it has 8");
  third = moondream3_config();
  third.text.tau_attn = false;
  EXPECT_EQ(difference(third, moondream3_config()),
            "config.json: text.tau_attn is false; it has true");
  third = moondream3_config();
  third.region.linear_decoders = false;
  EXPECT_THAT(difference(third, moondream3_config()), HasSubstr("region.decoder_arch"));
}

TEST(ModelConfig, WrongFieldsAreNamed) {
  // One edit of the good small configuration each.
  const auto with = [](const char* section, const char* key, boost::json::value value) {
    auto document = boost::json::parse(model_config_to_json(very_small_config()));
    document.as_object()[section].as_object()[key] = std::move(value);
    return error_of(boost::json::serialize(document));
  };
  EXPECT_THAT(with("text", "dim", "big"), HasSubstr("text.dim must be an integer"));
  EXPECT_THAT(with("text", "dim", -32), HasSubstr("text.dim must be between"));
  EXPECT_THAT(with("text", "dim", 0), HasSubstr("text.dim = 0"));
  EXPECT_THAT(with("text", "dim", 1 << 20), HasSubstr("text.dim = 1048576"));
  EXPECT_THAT(with("text", "dim", 1e9), HasSubstr("text.dim must be an integer"));
  EXPECT_THAT(with("text", "n_heads", 5), HasSubstr("text.n_kv_heads = 4 must equal"));
  EXPECT_THAT(with("text", "n_kv_heads", 2), HasSubstr("text.n_kv_heads = 2"));
  EXPECT_THAT(with("text", "n_heads", 0), HasSubstr("text.n_heads = 0"));
  EXPECT_THAT(with("text", "max_context", 26), HasSubstr("text.max_context = 26 leaves no room"));
  EXPECT_THAT(with("text", "rope_theta", 0), HasSubstr("text.rope_theta"));
  EXPECT_THAT(with("text", "moe", boost::json::object{{"num_experts", 300}}),
              HasSubstr("text.moe.num_experts = 300 must be between 0 and 256"));
  EXPECT_THAT(with("text", "moe", boost::json::object{{"num_experts", 4}}),
              HasSubstr("text.moe.experts_per_token = 0 must be between 1 and 4"));
  EXPECT_THAT(
      with("text", "moe", boost::json::object{{"num_experts", 4}, {"experts_per_token", 4}}),
      HasSubstr("text.moe.expert_inner_dim = 0"));
  EXPECT_THAT(with("text", "moe",
                   boost::json::object{
                       {"num_experts", 64}, {"experts_per_token", 17}, {"expert_inner_dim", 16}}),
              HasSubstr("text.moe.experts_per_token = 17 must be between 1 and 16"));
  EXPECT_THAT(with("text", "moe",
                   boost::json::object{{"num_experts", 4},
                                       {"experts_per_token", 2},
                                       {"expert_inner_dim", 16},
                                       {"start_layer", 3}}),
              HasSubstr("text.moe.start_layer = 3 must be between 0 and 2"));
  EXPECT_THAT(with("text", "tau_attn", "yes"), HasSubstr("text.tau_attn"));
  EXPECT_THAT(with("gapless", "numerics", boost::json::object{{"tau_gelu", "relu"}}),
              HasSubstr("tau_gelu is relu; it may be tanh, erf"));
  EXPECT_THAT(with("gapless", "numerics", boost::json::object{{"tau", "erf"}}),
              HasSubstr("no option of numerics 'tau'; there are tau_gelu, tau_position"));
  EXPECT_THAT(with("text", "group_size", 128), HasSubstr("text.group_size"));
  EXPECT_THAT(with("vision", "enc_n_heads", 5),
              HasSubstr("vision.enc_dim = 24 must be a multiple"));
  EXPECT_THAT(with("vision", "crop_size", 21), HasSubstr("vision.crop_size = 21"));
  EXPECT_THAT(with("vision", "enc_patch_size", 0), HasSubstr("vision.enc_patch_size = 0"));
  EXPECT_THAT(with("vision", "overlap_margin", 3), HasSubstr("vision.overlap_margin = 3"));
  EXPECT_THAT(with("vision", "in_channels", 1), HasSubstr("vision.in_channels = 1 must be 3"));
  EXPECT_THAT(with("vision", "proj_out_dim", 31), HasSubstr("vision.proj_out_dim = 31"));
  EXPECT_THAT(with("region", "dim", 31), HasSubstr("region.dim = 31 must equal text.dim = 32"));
  EXPECT_THAT(with("region", "size_out_dim", 127), HasSubstr("region.size_out_dim = 127"));
  EXPECT_THAT(with("region", "decoder_arch", "conv"), HasSubstr("region.decoder_arch conv"));
  EXPECT_THAT(with("region", "use_ln", 1), HasSubstr("region.use_ln"));
  EXPECT_THAT(with("tokenizer", "eos_id", 96), HasSubstr("ids 0 to 96, but text.vocab_size is 96"));
  EXPECT_THAT(with("tokenizer", "templates", nullptr), HasSubstr("tokenizer.templates"));
  EXPECT_THAT(with("tokenizer", "vocab_size", -1), HasSubstr("tokenizer.vocab_size"));
  EXPECT_THAT(with("tokenizer", "spellings", boost::json::object{{"x", "y"}}),
              HasSubstr("tokenizer.spellings must be an object from token ids to their texts"));
  EXPECT_THAT(with("tokenizer", "spellings", boost::json::object{{"7", 1}}),
              HasSubstr("tokenizer.spellings.7 must be a string"));
  EXPECT_THAT(error_of(R"({"text": {"vocab_size": 768}})"), HasSubstr("must give its ids"));
  EXPECT_THAT(error_of(R"({"text": []})"), HasSubstr("text must be an object"));
  EXPECT_THAT(error_of("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error_of("{\"text\": "), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace gapless
