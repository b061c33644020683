#include "model/random_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/file_bytes.h"
#include "model/moondream/checkpoint_profile.h"
#include "model/moondream/tensors.h"
#include "model/moondream/test_config.h"
#include "weights/float_conversion.h"
#include "weights/random_tensors.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using testing_config::very_small_config;
using testing_files::TemporaryFolder;

WeightSpec find(const ModelConfig& config, std::string_view name) {
  for (const WeightSpec& weight : weight_specs(config)) {
    if (weight.name == name) return weight;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(RandomWeights, NoiseIsCentredWithUnitVariance) {
  EXPECT_EQ(unit_noise(0), -unit_noise(0xFFFFFFFF));
  EXPECT_EQ(unit_noise(0x00FF00FF), 0);
  EXPECT_NEAR(unit_noise(0xFFFFFFFF), 3.45, 0.01);
  const RandomTensorSpec spec{.seed = 1, .tensor_hash = 2, .stddev = 3};
  constexpr int kCount = 1 << 18;
  std::vector<float> values(kCount);
  fill_random_f32(spec, 0, values);
  double sum = 0, squares = 0, lagged = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    squares += double{values[i]} * values[i];
    lagged += double{values[i]} * values[(i + 1) % values.size()];
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / kCount, 0, 5 * 3 / std::sqrt(double{kCount}));
  EXPECT_NEAR(squares / kCount, 9, 5 * 9 * std::sqrt(1.7 / kCount));
  EXPECT_NEAR(lagged / kCount, 0, 5 * 9 / std::sqrt(double{kCount}));
}

// These bits are a promise: the same seed gives the same model in every build and on every device.
TEST(RandomWeights, GoldenValues) {
  EXPECT_EQ(hash_tensor_name(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_tensor_name("foobar"), 0x85944171f73967e8u);  // published test vector of FNV-1a
  const RandomTensorSpec spec{.seed = 0, .tensor_hash = 0, .stddev = 1};
  // Philox's published answer for zeros begins with 0x6627e8d5: 0x66 + 0x27 + 0xe8 + 0xd5 = 586.
  EXPECT_EQ(random_value(spec, 0), 76 * 0.0067658751f);
  // The fourth word is 0x9b00dbd8: 155 + 0 + 219 + 216 = 590.
  EXPECT_EQ(random_value(spec, 3), 80 * 0.0067658751f);
}

TEST(RandomWeights, AnyCuttingGivesTheSameValues) {
  const RandomTensorSpec spec{.seed = 5, .tensor_hash = 6, .stddev = 1};
  std::vector<float> whole(50), part(13);
  fill_random_f32(spec, 0, whole);
  for (std::uint64_t first = 0; first < 20; ++first) {
    fill_random_f32(spec, first, part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      EXPECT_EQ(part[i], whole[first + i]);
      EXPECT_EQ(part[i], random_value(spec, first + i));
    }
  }
}

TEST(RandomWeights, DistributionsOfMoondream2) {
  const ModelConfig config = moondream2_config();
  const auto spec_of = [&](const char* name) { return random_tensor_spec(find(config, name), 3); };
  EXPECT_EQ(spec_of("model.text.blocks.0.ln.weight").mean, 1);
  EXPECT_EQ(spec_of("model.text.blocks.0.ln.weight").stddev, 0);
  EXPECT_EQ(spec_of("model.vision.post_ln.weight").mean, 1);
  EXPECT_FLOAT_EQ(spec_of("model.text.blocks.0.attn.qkv.weight").stddev, 1 / std::sqrt(2048.0f));
  EXPECT_FLOAT_EQ(spec_of("model.text.blocks.0.mlp.fc2.weight").stddev,
                  1 / std::sqrt(8192.0f * 48));
  EXPECT_FLOAT_EQ(spec_of("model.vision.blocks.0.attn.proj.weight").stddev,
                  1 / std::sqrt(1152.0f * 54));
  EXPECT_NE(spec_of("model.text.blocks.0.attn.qkv.weight").tensor_hash,
            spec_of("model.text.blocks.1.attn.qkv.weight").tensor_hash);
  for (const WeightSpec& weight : weight_specs(config)) {
    const RandomTensorSpec spec = random_tensor_spec(weight, 3);
    EXPECT_TRUE((spec.mean == 0) != (spec.stddev == 0)) << weight.name;
    EXPECT_LE(spec.stddev, 1) << weight.name;
  }
}

// Of all tensors, sorted by name. Figures of random models are only comparable while this stands.
TEST(RandomWeights, ASeedsModelStaysWhatItIs) {
  std::vector<WeightSpec> weights = weight_specs(very_small_config());
  std::ranges::sort(weights, {}, &WeightSpec::name);
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const WeightSpec& weight : weights) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(weight.num_elements()));
    fill_random_bf16(random_tensor_spec(weight, 9), 0, values);
    for (const std::uint16_t value : values) hash = (hash ^ value) * 0x100000001b3u;
  }
  EXPECT_EQ(hash, 0xd9551e0cde9dbaa4u);
}

TEST(RandomModel, AModelThatIsThereIsLeftAsItIs) {
  const TemporaryFolder folder;
  const auto write = [&] {
    return write_random_model({.config = very_small_config(), .random_seed = 9}, folder.path(),
                              [](auto, auto) {});
  };
  for (const char* const name : {"model.safetensors", "config.json"}) {
    const auto path = folder.path() / name;
    ASSERT_TRUE(write_file(path, {}).ok());
    EXPECT_EQ(write().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(std::filesystem::file_size(path), 0u);
    std::filesystem::remove(path);
  }
  EXPECT_TRUE(write().ok());
}

TEST(RandomModel, TheFileHoldsTheRoundedValues) {
  const TemporaryFolder folder;
  const ModelConfig config = very_small_config();
  std::int64_t reported = 0, total = 0;
  ASSERT_TRUE(write_random_model({.config = config, .random_seed = 9}, folder.path() / "m",
                                 [&](auto written, auto all) {
                                   reported = written;
                                   total = all;
                                 })
                  .ok());
  EXPECT_EQ(reported, total);
  EXPECT_EQ(recognise_checkpoint(folder.path() / "m").value().config, config);
  const WeightSource source = WeightSource::open(folder.path() / "m", weight_specs(config)).value();
  for (const WeightSpec& weight : weight_specs(config)) {
    const RandomTensorSpec spec = random_tensor_spec(weight, 9);
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(weight.num_elements()));
    ASSERT_TRUE(source.read_as_bf16(weight.name, bits).ok());
    for (std::size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(bits[i], bf16_from_f32(random_value(spec, i))) << weight.name;
    }
  }
}

}  // namespace
}  // namespace gapless
