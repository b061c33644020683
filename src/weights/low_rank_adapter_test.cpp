#include "weights/low_rank_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "weights/float_conversion.h"
#include "weights/test_files.h"
#include "weights/weight_map.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing_files::TemporaryFolder;

struct Numbers {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

std::string float_file(const std::vector<Numbers>& tensors) {
  boost::json::object header;
  std::string data;
  for (const Numbers& tensor : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()),
                tensor.values.size() * sizeof(float));
    header[tensor.name] = {{"dtype", "F32"},
                           {"shape", boost::json::array(tensor.shape.begin(), tensor.shape.end())},
                           {"data_offsets", {begin, data.size()}}};
  }
  return testing_files::safetensors_bytes(boost::json::serialize(header), data);
}

const std::vector<WeightSpec> kModel = {
    {.name = "model.layers.0.q_proj.weight", .shape = {3, 2}},
    {.name = "model.layers.0.k_proj.weight", .shape = {1, 2}},
    {.name = "model.norm.weight", .shape = {2}, .role = TensorRole::kNormGain},
    {.name = "model.embed.weight", .shape = {4, 2}, .role = TensorRole::kTokenEmbedding},
    {.name = "model.experts.weight", .shape = {2, 1, 2}}};
const std::vector<Numbers> kBase = {{"model.layers.0.q_proj.weight", {3, 2}, {1, 2, 3, 4, 5, 6}},
                                    {"model.layers.0.k_proj.weight", {1, 2}, {7, 8}},
                                    {"model.norm.weight", {2}, {1, 1}},
                                    {"model.embed.weight", {4, 2}, {0, 0, 0, 0, 0, 0, 0, 0}},
                                    {"model.experts.weight", {2, 1, 2}, {0, 0, 0, 0}}};

const std::string kPlain = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";
const std::string kPart = "base_model.model.model.layers.0.q_proj.";
// s B A with s = 4 / 2: [[2, 4], [6, 8], [8, 12]]
const std::vector<Numbers> kTerm = {{kPart + "lora_A.weight", {2, 2}, {1, 2, 3, 4}},
                                    {kPart + "lora_B.weight", {3, 2}, {1, 0, 0, 1, 1, 1}}};

class LowRankAdapterTest : public testing::Test {
 protected:
  void write(const std::string& config, const std::vector<Numbers>& tensors) {
    folder_.write("adapter_config.json", config);
    folder_.write("adapter_model.safetensors", float_file(tensors));
  }

  WeightSource open(const std::vector<Numbers>& base = kBase) {
    const auto file = folder_.write("model.safetensors", float_file(base));
    WeightSource source = WeightSource::open(file, kModel).value();
    source.add_terms(LowRankAdapter::open(folder_.path(), kModel).value());
    return source;
  }

  std::string error(const std::string& config, const std::vector<Numbers>& tensors = kTerm) {
    write(config, tensors);
    const auto adapter = LowRankAdapter::open(folder_.path(), kModel);
    return adapter.ok() ? "no error" : adapter.status().to_string();
  }

  static std::vector<float> read(const WeightSource& source, const std::string& name,
                                 std::size_t count, std::int64_t first = 0) {
    std::vector<float> values(count);
    EXPECT_TRUE(source.read_as_f32(name, values, first).ok());
    return values;
  }

  TemporaryFolder folder_;
};

TEST_F(LowRankAdapterTest, TheTermIsPartOfWhatIsRead) {
  write(kPlain, kTerm);
  const WeightSource source = open();
  const std::vector<float> all = {3, 6, 9, 12, 13, 18};
  EXPECT_THAT(read(source, "model.layers.0.q_proj.weight", 6), ElementsAreArray(all));
  // Any range, also one that begins and ends inside a row.
  for (std::size_t first = 0; first < all.size(); ++first) {
    for (std::size_t count = 0; first + count <= all.size(); ++count) {
      EXPECT_THAT(read(source, "model.layers.0.q_proj.weight", count, static_cast<int>(first)),
                  ElementsAreArray(std::span(all).subspan(first, count)));
    }
  }
  EXPECT_THAT(read(source, "model.layers.0.k_proj.weight", 2), ElementsAreArray({7.f, 8.f}));
  EXPECT_EQ(source.adapter()->num_terms(), 1);
  EXPECT_EQ(source.adapter()->max_rank(), 2);
}

TEST_F(LowRankAdapterTest, TheScaleMayBeByTheRanksRoot) {
  write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": true})", kTerm);
  EXPECT_FLOAT_EQ(read(open(), "model.layers.0.q_proj.weight", 1)[0], 1 + 4 / std::sqrt(2.f) * 1);
}

// Each term has its own rank, whatever the configuration says of others.
TEST_F(LowRankAdapterTest, TheScaleIsByTheTermsOwnRank) {
  write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {"k_proj": 1}})",
        {kTerm[0],
         kTerm[1],
         {"base_model.model.model.layers.0.k_proj.lora_A.weight", {1, 2}, {1, 10}},
         {"base_model.model.model.layers.0.k_proj.lora_B.weight", {1, 1}, {1}}});
  EXPECT_THAT(read(open(), "model.layers.0.k_proj.weight", 2), ElementsAreArray({11.f, 48.f}));
}

// The sum is rounded once: 1 + 3/512 lies between the bfloat16 numbers 1 and 1 + 1/128, nearer to the second, and
// neither 1 nor 3/512 rounded alone would say so.
TEST_F(LowRankAdapterTest, TheSumIsRoundedOnce) {
  write(R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1})",
        {{kPart + "lora_A.weight", {1, 2}, {1 / 512.f, 0}},
         {kPart + "lora_B.weight", {3, 1}, {1, 0, 0}}});
  std::vector<Numbers> base = kBase;
  base[0].values[0] = 1 + 2 / 512.f;
  std::vector<std::uint16_t> values(2);
  ASSERT_TRUE(open(base).read_as_bf16("model.layers.0.q_proj.weight", values).ok());
  EXPECT_EQ(f32_from_bf16(values[0]), 1 + 1 / 128.f);
  EXPECT_EQ(f32_from_bf16(values[1]), 2.f);
}

TEST_F(LowRankAdapterTest, ASumThatNoNumberHoldsIsAnError) {
  write(R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1})",
        {{kPart + "lora_A.weight", {1, 2}, {0, 3e38f}},
         {kPart + "lora_B.weight", {3, 1}, {0, 1, 0}}});
  std::vector<Numbers> base = kBase;
  base[0].values[3] = 3e38f;
  std::vector<float> values(6);
  const Status status = open(base).read_as_f32("model.layers.0.q_proj.weight", values);
  EXPECT_THAT(status.to_string(), AllOf(HasSubstr("q_proj"), HasSubstr("[1, 1]")));
}

// What PEFT saves beside the terms of logits: the base's own weights.
TEST_F(LowRankAdapterTest, ACopyOfTheBaseIsNotRead) {
  std::vector<Numbers> tensors = kTerm;
  tensors.push_back({kPart + "base_layer.weight", {3, 2}, {9, 9, 9, 9, 9, 9}});
  write(kPlain, tensors);
  EXPECT_EQ(read(open(), "model.layers.0.q_proj.weight", 1)[0], 3);
}

TEST_F(LowRankAdapterTest, WhatIsNotAPlainTermIsRefused) {
  const auto with = [](const std::string& field) {
    return R"({"peft_type": "LORA", "lora_alpha": 4, )" + field + "}";
  };
  EXPECT_THAT(error(with(R"("use_dora": true)")), HasSubstr("use_dora"));
  EXPECT_THAT(error(with(R"("bias": "all")")), HasSubstr("bias"));
  EXPECT_THAT(error(with(R"("fan_in_fan_out": true)")), HasSubstr("fan_in_fan_out"));
  EXPECT_THAT(error(with(R"("modules_to_save": ["lm_head"])")), HasSubstr("modules_to_save"));
  EXPECT_THAT(error(with(R"("alpha_pattern": {"q": 3})")), HasSubstr("alpha_pattern"));
  EXPECT_THAT(error(with(R"("init_lora_weights": "pissa_niter_4")")),
              HasSubstr("init_lora_weights"));
  EXPECT_THAT(error(R"({"peft_type": "IA3"})"), HasSubstr("peft_type"));
  EXPECT_THAT(error(R"({"peft_type": "LORA"})"), HasSubstr("lora_alpha"));
  EXPECT_THAT(error("{"), HasSubstr("adapter_config.json"));
  EXPECT_EQ(error(with(R"("modules_to_save": null, "alpha_pattern": {}, "use_dora": false,
                          "init_lora_weights": "gaussian", "bias": "none")")),
            "no error");
}

TEST_F(LowRankAdapterTest, WhatDoesNotFitTheModelIsRefused) {
  const auto beside = [](const std::string& module, std::int64_t in, std::int64_t out) {
    const auto zeros = [](std::int64_t n) {
      return std::vector<float>(static_cast<std::size_t>(n));
    };
    const std::string name = "base_model.model." + module;
    return std::vector<Numbers>{{name + ".lora_A.weight", {1, in}, zeros(in)},
                                {name + ".lora_B.weight", {out, 1}, zeros(out)}};
  };
  EXPECT_EQ(error(kPlain, beside("model.layers.0.q_proj", 2, 3)), "no error");
  EXPECT_THAT(error(kPlain, beside("model.layers.1.q_proj", 2, 3)), HasSubstr("no product"));
  EXPECT_THAT(error(kPlain, beside("model.norm", 2, 1)), HasSubstr("no product"));
  EXPECT_THAT(error(kPlain, beside("model.embed", 2, 4)), HasSubstr("no product"));
  EXPECT_THAT(error(kPlain, beside("model.experts", 2, 2)), HasSubstr("no product"));
  EXPECT_THAT(error(kPlain, beside("model.layers.0.q_proj", 3, 3)), HasSubstr("[1, 3]"));
  EXPECT_THAT(error(kPlain, beside("model.layers.0.q_proj", 2, 4)), HasSubstr("[4, 1]"));
  EXPECT_THAT(error(kPlain, {kTerm[0]}), HasSubstr("lora_B"));
  EXPECT_THAT(error(kPlain, {kTerm[1]}), HasSubstr("lora_A"));
  std::vector<Numbers> tensors = kTerm;
  tensors.push_back({kPart + "lora_magnitude_vector.weight", {3}, {1, 1, 1}});
  EXPECT_THAT(error(kPlain, tensors), HasSubstr("lora_magnitude_vector"));
  tensors = kTerm;
  tensors[0].values[1] = std::nanf("");
  EXPECT_THAT(error(kPlain, tensors), HasSubstr("lora_A"));
}

TEST_F(LowRankAdapterTest, AFolderWithoutItsFilesIsAnError) {
  EXPECT_THAT(LowRankAdapter::open(folder_.path(), kModel).status().to_string(),
              HasSubstr("adapter_config.json"));
  folder_.write("adapter_config.json", kPlain);
  EXPECT_THAT(LowRankAdapter::open(folder_.path(), kModel).status().to_string(),
              HasSubstr("adapter_model.safetensors"));
}

}  // namespace
}  // namespace gapless
