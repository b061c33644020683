#include "model/model_summary.h"

#include <gtest/gtest.h>

#include "model/llama/llama_config.h"
#include "model/moondream/model_weights.h"

namespace gapless {
namespace {

std::int64_t bytes_of_component(const std::vector<StepTraffic>& traffic, std::string_view name) {
  for (const StepTraffic& item : traffic) {
    if (item.component == name) return item.bytes;
  }
  ADD_FAILURE() << name;
  return 0;
}

std::vector<StepTraffic> step_of_moondream2(PreparedFormat weights, KvFormat kv_format, int rows,
                                            int context) {
  const ModelConfig config = moondream2_config();
  return decode_step_traffic(text_shape(config), describe_text_weights(config), DType::kBF16,
                             weights, kv_format, rows, context);
}

std::int64_t step_megabytes(int rows) {
  const auto traffic = step_of_moondream2(PreparedFormat::kNative, KvFormat::kNative, rows, 1000);
  return (total_bytes(traffic) + 500'000) / 1'000'000;
}

TEST(ModelSummary, PublishedParameterCounts) {
  const ModelSize size = model_size(moondream2_config());
  EXPECT_EQ(size.text, 1'418'270'720);
  EXPECT_EQ(size.vision, 448'649'072);
  EXPECT_EQ(size.region, 60'317'312);
  EXPECT_EQ(size.total(), 1'927'237'104);
}

// Worked out by hand for Moondream 2 in bf16 with 1000 cached tokens.
TEST(ModelSummary, DecodeStepOfMoondream2) {
  EXPECT_EQ(step_megabytes(1), 2824);
  EXPECT_EQ(step_megabytes(8), 4201);
  EXPECT_EQ(step_megabytes(32), 8925);
  const auto step = step_of_moondream2(PreparedFormat::kNative, KvFormat::kNative, 8, 1000);
  EXPECT_EQ(bytes_of_component(step, "qkv"), 603'979'776);
  EXPECT_EQ(bytes_of_component(step, "KV cache read"), 8 * 1000 * 196'608LL);
  EXPECT_EQ(bytes_of_component(step, "KV cache write"), 8 * 196'608);
  EXPECT_EQ(bytes_of_component(step, "MLP"), 1'610'612'736);
}

// The head's bias, and its LayerNorm, stay as they are.
TEST(ModelSummary, Fp8WeightsHalveTheTrafficOfMatricesAndNothingElse) {
  const auto native = step_of_moondream2(PreparedFormat::kNative, KvFormat::kNative, 8, 1000);
  const auto fp8 = step_of_moondream2(PreparedFormat::kFp8, KvFormat::kNative, 8, 1000);
  ASSERT_EQ(fp8.size(), native.size());
  for (std::size_t i = 0; i < fp8.size(); ++i) {
    const std::string& name = native[i].component;
    const std::int64_t others = name == "lm_head" ? 2 * (2 * 2048 + 51200) : 0;
    const bool is_matrix =
        name == "qkv" || name == "attention projection" || name == "MLP" || name == "lm_head";
    EXPECT_EQ(fp8[i].bytes, is_matrix ? (native[i].bytes - others) / 2 + others : native[i].bytes)
        << name;
  }
}

TEST(ModelSummary, AnFp8CacheHalvesItsTrafficAndNothingElse) {
  const auto native = step_of_moondream2(PreparedFormat::kNative, KvFormat::kNative, 64, 850);
  const auto fp8 = step_of_moondream2(PreparedFormat::kNative, KvFormat::kFp8, 64, 850);
  ASSERT_EQ(fp8.size(), native.size());
  for (std::size_t i = 0; i < fp8.size(); ++i) {
    const bool is_cache = native[i].component.starts_with("KV cache");
    EXPECT_EQ(fp8[i].bytes, is_cache ? native[i].bytes / 2 : native[i].bytes) << fp8[i].component;
  }
  EXPECT_EQ(bytes_of_component(fp8, "KV cache read"), 64 * 850 * 98'304LL);
}

TEST(ModelSummary, RegionHeadsOfMoondream2) {
  const auto region = region_step_traffic(moondream2_config(), DType::kBF16);
  EXPECT_EQ(bytes_of_component(region, "coordinate decoder") / 100'000, 503);
  EXPECT_EQ(bytes_of_component(region, "size decoder") / 100'000, 671);
  EXPECT_EQ(bytes_of_component(region, "region encoders") / 100'000, 31);
}

TEST(ModelSummary, TheDescriptionNamesTheTotals) {
  const std::string text =
      describe_model(moondream2_config(), PreparedFormat::kNative, KvFormat::kNative, 1, 1000);
  EXPECT_NE(text.find("1,927,237,104"), std::string::npos) << text;
  EXPECT_NE(text.find("2823.6 MB"), std::string::npos) << text;
  const std::string fp8 =
      describe_model(moondream2_config(), PreparedFormat::kFp8, KvFormat::kNative, 1, 1000);
  EXPECT_NE(fp8.find("bf16, matrices fp8"), std::string::npos) << fp8;
  EXPECT_NE(fp8.find("1510.8 MB"), std::string::npos) << fp8;
}

TEST(ModelSummary, TheDescriptionSaysHowDecodeStepsRun) {
  ModelConfig config = moondream2_config();
  const auto describe = [&] {
    return describe_model(config, PreparedFormat::kNative, KvFormat::kNative, 1, 1000);
  };
  EXPECT_NE(describe().find("decode steps on a GPU: one launch each"), std::string::npos);
  config.text.max_context = 4096;
  EXPECT_NE(describe().find("decode steps on a GPU: composed of single ops, because its context is "
                            "4096 tokens, more than 2048"),
            std::string::npos)
      << describe();
}

TEST(ModelSummary, TheDescriptionOfATextModelSaysFromWhichContextOnStepsAreComposed) {
  const auto describe = [](const char* name) {
    return describe_model(published_llama(name).value(), PreparedFormat::kNative, KvFormat::kNative,
                          1, 1000);
  };
  const std::string llama = describe("llama3-8b");
  EXPECT_NE(llama.find("decode steps on a GPU: one launch each\n"
                       "  with --max-context 131072: composed, because its context is 131072 "
                       "tokens, more than 32768"),
            std::string::npos)
      << llama;
  EXPECT_NE(describe("qwen3-8b").find("one launch each"), std::string::npos);
  EXPECT_NE(describe("qwen3-1.7b").find("one launch each"), std::string::npos);
  EXPECT_NE(describe("llama3-1b")
                .find("composed of single ops, because its blocks are sequential "
                      "and its heads have 64 dims, not 128"),
            std::string::npos)
      << describe("llama3-1b");
}

}  // namespace
}  // namespace gapless
