// The models before June 2025: what their prompts are made of, how their files are read, and which sizes they have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/model_source.h"
#include "model/model_summary.h"
#include "model/moondream/model_weights.h"
#include "model/moondream/tensors.h"
#include "model/moondream/test_config.h"
#include "model/random_model.h"
#include "weights/float_conversion.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using testing_files::TemporaryFolder;

std::vector<TokenId> ids(std::initializer_list<int> values) {
  return TokenizerConfig::ids(values);
}

// config.py of vikhyat/moondream, 2025-01-23 and 2025-04-13.
TEST(OlderModels, PromptsAreMadeOfPlainTokens) {
  for (const ModelConfig& config :
       {moondream2_january_config(), moondream2_march_config(), moondream_half_billion_config()}) {
    const TokenizerConfig& tokenizer = config.tokenizer;
    EXPECT_EQ(tokenizer.bos_id, TokenId(50256));
    EXPECT_EQ(tokenizer.eos_id, TokenId(50256));
    EXPECT_EQ(tokenizer.caption_short, ids({198, 198, 16438, 8305, 25}));
    EXPECT_EQ(tokenizer.caption_normal, ids({198, 198, 24334, 1159, 25}));
    EXPECT_EQ(tokenizer.query.prefix, ids({198, 198, 24361, 25}));
    EXPECT_EQ(tokenizer.query.suffix, ids({198, 198, 33706, 25}));
    EXPECT_EQ(tokenizer.detect.prefix, ids({198, 198, 47504, 25}));
    EXPECT_EQ(tokenizer.detect.suffix, ids({628}));
    EXPECT_EQ(tokenizer.point.prefix, ids({198, 198, 12727, 25}));
    EXPECT_EQ(tokenizer.point.suffix, ids({628}));
    EXPECT_FALSE(tokenizer.answer_id.valid() || tokenizer.thinking_id.valid());
    // No row of the tokenizer (50257 of GPT-2 and 38 runs of blanks), but one of the model.
    for (const TokenId stand_in : {tokenizer.coord_id, tokenizer.size_id}) {
      EXPECT_GE(stand_in.value, 50295);
      EXPECT_LT(stand_in.value, config.text.vocab_size);
    }
    EXPECT_TRUE(tokenizer.any_token_is_coord);
    EXPECT_FALSE(config.region.linear_decoders || config.region.use_ln);
    EXPECT_EQ(config.text.max_context, 2048);
    EXPECT_TRUE(validate_model_config(config, "it").ok());
  }
}

// Long captions, log sizes and blanks in front of questions and objects came in March.
TEST(OlderModels, WhatMarchChanged) {
  const ModelConfig january = moondream2_january_config(), march = moondream2_march_config();
  EXPECT_TRUE(january.tokenizer.caption_long.empty());
  EXPECT_EQ(march.tokenizer.caption_long, ids({198, 198, 14617, 8305, 25}));
  EXPECT_TRUE(january.region.linear_sizes);
  EXPECT_FALSE(march.region.linear_sizes);
  EXPECT_FALSE(january.tokenizer.object_leading_space || january.tokenizer.question_leading_space);
  EXPECT_TRUE(march.tokenizer.object_leading_space && march.tokenizer.question_leading_space);
  EXPECT_EQ(january.numerics.coord_divisor, CoordDivisor::kNumBins);
  EXPECT_EQ(march.numerics.coord_divisor, CoordDivisor::kLastBin);
  EXPECT_EQ(january.text, moondream2_config().text);
  EXPECT_EQ(moondream_half_billion_config().tokenizer, january.tokenizer);
}

TEST(OlderModels, TheirConfigurationComesBackFromAFile) {
  for (const char* name : {"moondream2-january", "moondream2-march", "moondream-0.5b",
                           "moondream-0.5b-small", "moondream2-march-small"}) {
    const ModelConfig config = published_architecture(name).value();
    const auto parsed = parse_model_config(model_config_to_json(config), "config.json");
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(*parsed, config) << name;
  }
  ModelConfig without = moondream2_january_config();
  without.tokenizer.coord_id = TokenId();
  EXPECT_THAT(validate_model_config(without, "it").message(),
              HasSubstr("tokenizer.coord_id is missing"));
  without = moondream2_january_config();
  without.tokenizer.coord_id = TokenId(51200);
  EXPECT_THAT(validate_model_config(without, "it").message(), HasSubstr("to 51200"));
}

TEST(OlderModels, SmallOnesDifferAsTheFullOnesDo) {
  const ModelConfig half = published_architecture("moondream-0.5b-small").value();
  const ModelConfig march = published_architecture("moondream2-march-small").value();
  for (const ModelConfig& config : {half, march}) {
    EXPECT_LT(model_size(config).total(), 4'000'000);
    EXPECT_TRUE(config.tokenizer.any_token_is_coord);
    EXPECT_GE(config.tokenizer.coord_id.value, config.tokenizer.vocab_size);
    EXPECT_TRUE(check_model_shape(config).ok());
  }
  EXPECT_TRUE(half.region.linear_sizes);
  EXPECT_FALSE(march.region.linear_sizes);
  EXPECT_TRUE(half.tokenizer.caption_long.empty());
  EXPECT_FALSE(march.tokenizer.caption_long.empty());
}

TEST(OlderModels, InfoNamesWhatTheyAre) {
  const auto about = [](const char* name) {
    const auto source = find_model(name);
    EXPECT_TRUE(source.ok()) << source.status().to_string();
    return describe_model(source->config, PreparedFormat::kNative, KvFormat::kNative, 1, 1000);
  };
  EXPECT_THAT(about("random:moondream-0.5b"), HasSubstr("631,889,382"));
  EXPECT_THAT(about("random:moondream-0.5b"), HasSubstr("2 x 1024 linear size bins, MLP 8192"));
  EXPECT_THAT(about("random:moondream-0.5b"), HasSubstr("coord_divisor: num_bins"));
  EXPECT_THAT(about("random:moondream2-march"), HasSubstr("2 x 1024 size bins, MLP 8192"));
}

// Every weight of a file in 16-bit floats reaches the model as the number that it is, in float32 and, rounded once, in
// bfloat16.
TEST(OlderModels, WeightsInF16AreReadExactly) {
  const ModelConfig config = testing_config::very_small_config();
  const std::vector<WeightSpec> specs = weight_specs(config);
  const TemporaryFolder folder;
  std::string header, data;
  std::uint16_t next = 0;
  for (const WeightSpec& spec : specs) {
    const auto count = static_cast<std::size_t>(spec.num_elements());
    header += fmt::format(R"({}"{}": {{"dtype": "F16", "shape": [{}], "data_offsets": [{}, {}]}})",
                          header.empty() ? "" : ", ", spec.name, fmt::join(spec.shape, ", "),
                          data.size(), data.size() + 2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      // All finite ones come by: both signs, subnormal ones among them.
      do {
        next = static_cast<std::uint16_t>(next + 40503);
      } while ((next & 0x7C00) == 0x7C00);
      data.append(reinterpret_cast<const char*>(&next), sizeof(next));
    }
  }
  folder.write("model.safetensors", testing_files::safetensors_bytes("{" + header + "}", data));
  const auto source = WeightSource::open(folder.path(), specs);
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  std::size_t at = 0, num_subnormal = 0;
  for (const WeightSpec& spec : specs) {
    const auto count = static_cast<std::size_t>(spec.num_elements());
    std::vector<float> floats(count);
    std::vector<std::uint16_t> halves(count);
    ASSERT_TRUE(source->read_as_f32(spec.name, floats).ok()) << spec.name;
    ASSERT_TRUE(source->read_as_bf16(spec.name, halves).ok()) << spec.name;
    for (std::size_t i = 0; i < count; ++i, at += 2) {
      std::uint16_t bits;
      std::memcpy(&bits, data.data() + at, sizeof(bits));
      // 2^-14 and below have their own exponent.
      const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
      const double size =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(floats[i], (bits & 0x8000) != 0 ? -size : size) << spec.name << " " << i;
      ASSERT_EQ(halves[i], bf16_from_f32(floats[i])) << spec.name << " " << i;
      num_subnormal += exponent == 0 && mantissa != 0 ? 1u : 0u;
    }
  }
  EXPECT_GT(num_subnormal, 1000u);
}

}  // namespace
}  // namespace gapless
