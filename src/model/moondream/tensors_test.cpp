#include "model/moondream/tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "model/moondream/test_config.h"
#include "weights/float_conversion.h"
#include "weights/random_tensors.h"
#include "weights/safetensors_writer.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_config::very_small_config;
using testing_files::TemporaryFolder;

constexpr std::uint64_t kSeed = 17;

std::vector<float> values_of(const WeightSpec& weight) {
  std::vector<float> values(static_cast<std::size_t>(weight.num_elements()));
  fill_random_f32(random_tensor_spec(weight, kSeed), 0, values);
  return values;
}

// How a test's file stores a tensor. The default is the published form in float32.
struct Stored {
  std::string name;
  std::vector<std::int64_t> shape;
  TensorDType dtype = TensorDType::kF32;
  bool transposed = false;
  std::optional<std::pair<std::int64_t, float>> change;  // of one published element
};

// Writes the very small model; `edit` may change how each tensor is stored, or leave it out
// (false).
std::filesystem::path write_model(const TemporaryFolder& folder,
                                  const std::function<bool(const WeightSpec&, Stored&)>& edit) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::string data;
  for (const WeightSpec& weight : weight_specs(very_small_config())) {
    Stored stored{weight.name, weight.shape};
    if (!edit(weight, stored)) continue;
    tensors.push_back({stored.name, stored.dtype, stored.shape});
    std::int64_t count = 1;
    for (const std::int64_t side : stored.shape) count *= side;
    std::vector<float> values = values_of(weight);
    if (stored.change)
      values[static_cast<std::size_t>(stored.change->first)] = stored.change->second;
    if (stored.transposed) {
      const std::int64_t columns = weight.shape[1];
      const std::vector<float> published = values;
      for (std::int64_t i = 0; i < count; ++i) {
        values[static_cast<std::size_t>(i % columns * weight.shape[0] + i / columns)] =
            published[static_cast<std::size_t>(i)];
      }
    }
    values.resize(static_cast<std::size_t>(count));
    for (const float value : values) {
      if (stored.dtype == TensorDType::kF32) {
        data.append(reinterpret_cast<const char*>(&value), 4);
      } else {
        const std::uint16_t bits = bf16_from_f32(value);
        data.append(reinterpret_cast<const char*>(&bits), 2);
      }
    }
  }
  const auto path = folder.path() / "model.safetensors";
  auto writer = SafetensorsWriter::create(path, tensors).value();
  EXPECT_TRUE(writer.append(std::as_bytes(std::span(data))).ok());
  EXPECT_TRUE(writer.finish().ok());
  return path;
}

void expect_same_values(const std::filesystem::path& path) {
  const auto source = WeightSource::open(path, weight_specs(very_small_config()));
  ASSERT_TRUE(source.ok()) << source.status().message();
  for (const WeightSpec& weight : weight_specs(very_small_config())) {
    std::vector<float> values(static_cast<std::size_t>(source->num_elements(weight.name)));
    EXPECT_TRUE(source->read_as_f32(weight.name, values).ok());
    EXPECT_EQ(values, values_of(weight)) << weight.name;
  }
}

std::string error_after(const std::function<bool(const WeightSpec&, Stored&)>& edit) {
  const TemporaryFolder folder;
  const auto source =
      WeightSource::open(write_model(folder, edit), weight_specs(very_small_config()));
  if (source.ok()) return "no error";
  EXPECT_THAT(source.status().message(), HasSubstr("model.safetensors: tensor"));
  return source.status().message();
}

TEST(WeightMap, Moondream2HasItsTensors) {
  const auto specs = weight_specs(moondream2_config());
  EXPECT_EQ(specs.size(), 592u);
  std::set<std::string> names, legacy_names;
  for (const WeightSpec& spec : specs) {
    names.insert(spec.name);
    legacy_names.insert(spec.legacy_name);
  }
  EXPECT_EQ(names.size(), 592u);
  EXPECT_EQ(legacy_names.size(), 592u);
  EXPECT_TRUE(names.contains("model.text.blocks.23.attn.qkv.weight"));
  EXPECT_TRUE(legacy_names.contains("text_model.transformer.h.23.mixer.Wqkv.weight"));
  EXPECT_TRUE(legacy_names.contains("vision_encoder.encoder.model.visual.blocks.26.norm2.bias"));
}

TEST(WeightMap, EightBitsTakeTheMatricesOfBlocksTheProjectorAndTheLogits) {
  std::set<std::string> rounded, multiplied;
  for (const WeightSpec& spec : weight_specs(moondream2_config())) {
    if (spec.fp8 != Fp8Use::kNone) rounded.insert(spec.name);
    if (spec.fp8 == Fp8Use::kMultiplied) multiplied.insert(spec.name);
  }
  EXPECT_EQ(rounded.size(), (24u + 27u) * 4 + 2 + 1);
  EXPECT_EQ(multiplied.size(), (24u + 27u) * 3);
  for (const char* name :
       {"model.text.blocks.23.attn.qkv.weight", "model.vision.blocks.26.mlp.fc1.weight",
        "model.vision.blocks.0.mlp.fc2.weight"}) {
    EXPECT_TRUE(multiplied.contains(name)) << name;
  }
  for (const char* name : {"model.text.blocks.0.attn.proj.weight", "model.text.lm_head.weight",
                           "model.vision.proj_mlp.fc1.weight"}) {
    EXPECT_TRUE(rounded.contains(name) && !multiplied.contains(name)) << name;
  }
  for (const char* name : {"model.text.wte", "model.vision.patch_emb.weight",
                           "model.region.coord_decoder.fc1.weight"}) {
    EXPECT_FALSE(rounded.contains(name)) << name;
  }
}

TEST(WeightMap, PublishedNames) {
  const TemporaryFolder folder;
  expect_same_values(write_model(folder, [](const auto&, Stored&) { return true; }));
}

TEST(WeightMap, WithoutModelInFront) {
  const TemporaryFolder folder;
  expect_same_values(write_model(folder, [](const auto&, Stored& stored) {
    stored.name = stored.name.substr(6);
    return true;
  }));
}

TEST(WeightMap, LegacyNamesWithTransposedFourierMatrices) {
  const TemporaryFolder folder;
  int num_transposed = 0;
  expect_same_values(write_model(folder, [&](const WeightSpec& weight, Stored& stored) {
    stored.name = weight.legacy_name;
    if (weight.legacy_transposed) {
      std::ranges::reverse(stored.shape);
      stored.transposed = true;
      ++num_transposed;
    }
    return true;
  }));
  EXPECT_EQ(num_transposed, 2);
}

TEST(WeightMap, CompiledNamesAndSurplusTensors) {
  const TemporaryFolder folder;
  expect_same_values(write_model(folder, [&](const WeightSpec& weight, Stored& stored) {
    if (weight.name.find(".blocks.1.") != std::string::npos) stored.name += "._orig_mod";
    return true;
  }));
  EXPECT_THAT(error_after([](const WeightSpec& weight, Stored& stored) {
                if (weight.name == "model.text.wte") {
                  stored.name = "model.text.post_ln._orig_mod.weight";
                }
                return true;
              }),
              HasSubstr("are the same parameter"));
  const TemporaryFolder other;
  const auto path = write_model(other, [](const auto&, Stored&) { return true; });
  ModelConfig shorter = very_small_config();
  shorter.text.n_layers = 1;
  EXPECT_THAT(WeightSource::open(path, weight_specs(shorter)).status().message(),
              AllOf(HasSubstr("model.text.blocks.1."), HasSubstr("is not one of this model's")));
}

TEST(WeightMap, ReadsPartsAndRoundsToBf16) {
  const TemporaryFolder folder;
  const auto path = write_model(folder, [](const auto&, Stored&) { return true; });
  const WeightSource source = WeightSource::open(path, weight_specs(very_small_config())).value();
  for (const char* name : {"model.text.wte", "model.region.size_features"}) {
    std::vector<float> whole(static_cast<std::size_t>(source.num_elements(name)));
    ASSERT_TRUE(source.read_as_f32(name, whole).ok());
    std::vector<std::uint16_t> part(7);
    ASSERT_TRUE(source.read_as_bf16(name, part, 11).ok());
    for (std::size_t i = 0; i < part.size(); ++i) {
      EXPECT_EQ(part[i], bf16_from_f32(whole[11 + i])) << name;
    }
  }
}

TEST(WeightMap, StoredAsBf16) {
  const TemporaryFolder folder;
  const auto path = write_model(folder, [](const auto&, Stored& stored) {
    stored.dtype = TensorDType::kBF16;
    return true;
  });
  const WeightSource source = WeightSource::open(path, weight_specs(very_small_config())).value();
  const auto specs = weight_specs(very_small_config());
  std::int64_t total = 0;
  for (const WeightSpec& weight : specs) {
    const std::vector<float> expected = values_of(weight);
    std::vector<std::uint16_t> bits(expected.size());
    ASSERT_TRUE(source.read_as_bf16(weight.name, bits).ok());
    std::vector<float> values(expected.size());
    ASSERT_TRUE(source.read_as_f32(weight.name, values).ok());
    for (std::size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(bits[i], bf16_from_f32(expected[i]));
      ASSERT_EQ(values[i], f32_from_bf16(bits[i]));
    }
    total += weight.num_elements();
  }
  EXPECT_EQ(source.stored_bytes().at(TensorDType::kBF16), 2 * total);
}

// One bad value anywhere is found, whatever the file's dtype and the device's, and named.
TEST(WeightMap, ValuesThatAreNotFinite) {
  const std::string victim = "model.region.size_decoder.fc2.weight";  // [128, 48]
  const float huge = 3.4e38f;  // finite, but beyond bfloat16's rounding
  for (const TensorDType dtype : {TensorDType::kF32, TensorDType::kBF16}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity(), huge}) {
      for (const std::int64_t at : {0, 47, 48, 4095, 4096, 6143}) {
        const TemporaryFolder folder;
        const auto path = write_model(folder, [&](const auto& weight, Stored& stored) {
          stored.dtype = dtype;
          if (weight.name == victim) stored.change = {at, bad};
          return true;
        });
        const WeightSource source =
            WeightSource::open(path, weight_specs(very_small_config())).value();
        std::vector<float> values(6144);
        std::vector<std::uint16_t> bits(6144);
        const Status as_f32 = source.read_as_f32(victim, values);
        const Status as_bf16 = source.read_as_bf16(victim, bits);
        const std::string where = fmt::format("at [{}, {}], where", at / 48, at % 48);
        if (bad == huge && dtype == TensorDType::kF32) {
          EXPECT_TRUE(as_f32.ok());
          EXPECT_THAT(as_bf16.message(), AllOf(HasSubstr(where), HasSubstr("bfloat16 can hold")));
          continue;
        }
        for (const Status& status : {as_f32, as_bf16}) {
          EXPECT_EQ(status.code(), StatusCode::kDataLoss);
          EXPECT_THAT(status.message(),
                      AllOf(HasSubstr("model.safetensors: tensor '" + victim + "' is "),
                            HasSubstr(std::isnan(bad) ? "nan"
                                      : bad > 0       ? "inf"
                                                      : "-inf"),
                            HasSubstr(where)));
        }
        // A part that does not hold it is good.
        EXPECT_EQ(source.read_as_f32(victim, std::span(values).first(16), 100).ok(), true);
      }
    }
  }
}

TEST(WeightMap, MissingShapeDtype) {
  const std::string victim = "model.text.blocks.1.mlp.fc2.weight";
  EXPECT_EQ(error_after([](const auto&, Stored&) { return true; }), "no error");
  EXPECT_THAT(error_after([&](const auto& weight, Stored&) { return weight.name != victim; }),
              AllOf(HasSubstr(victim), HasSubstr("is missing"),
                    HasSubstr("text_model.transformer.h.1.mlp.fc2.weight")));
  EXPECT_THAT(error_after([&](const auto& weight, Stored& stored) {
                if (weight.name == victim) stored.shape = {32, 63};
                return true;
              }),
              AllOf(HasSubstr(victim), HasSubstr("[32, 63]"), HasSubstr("[32, 64]")));
  EXPECT_THAT(error_after([&](const auto& weight, Stored& stored) {
                if (weight.name == victim) stored.dtype = TensorDType::kI16;
                return true;
              }),
              AllOf(HasSubstr(victim), HasSubstr("dtype I16"), HasSubstr("F16, BF16 or F32")));
  // The published naming stores the Fourier matrices as they are: a transposed one is wrong there.
  EXPECT_THAT(error_after([&](const auto& weight, Stored& stored) {
                if (weight.name == "model.region.size_features") {
                  std::ranges::reverse(stored.shape);
                }
                return true;
              }),
              HasSubstr("model.region.size_features"));
}

}  // namespace
}  // namespace gapless
