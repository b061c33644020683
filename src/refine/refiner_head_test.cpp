// The refiner's network against the oracle (tools/gapless_tools/refiner.py), stage by stage.
#include "refine/refiner_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "weights/random_tensors.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

constexpr int kEncoderDim = 64, kGrid = 27, kSide = 378;
constexpr int kRowStride = 53;  // of the goldens
const std::filesystem::path kGoldens = GAPLESS_SOURCE_DIR "/tests/golden/refiner";

Rows golden_rows(const std::string& name) {
  const Checkpoint stages = Checkpoint::open(kGoldens / "stages.safetensors").value();
  const WeightSpec spec{.name = name, .shape = stages.tensors().at(name).shape};
  // The others are no part of the list.
  std::vector<WeightSpec> all;
  for (const auto& [other, tensor] : stages.tensors()) {
    all.push_back({.name = other, .shape = tensor.shape});
  }
  const WeightSource source = WeightSource::open(kGoldens / "stages.safetensors", all).value();
  Rows rows = Rows::zeros(static_cast<int>(spec.num_rows()), static_cast<int>(spec.row_size()));
  EXPECT_TRUE(source.read_as_f32(name, rows.values).ok());
  return rows;
}

class RefinerHeadTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = open_device("cpu").value();
    ops_ = FloatOps::create(*device_).value();
  }
  std::unique_ptr<RefinerHead> load(const std::filesystem::path& file) {
    auto head = RefinerHead::load(*ops_, file, kEncoderDim, kGrid);
    EXPECT_TRUE(head.ok()) << head.status().to_string();
    return std::move(head).value();
  }
  Status error_of(const std::filesystem::path& file, int encoder_dim = kEncoderDim) {
    return RefinerHead::load(*ops_, file, encoder_dim, kGrid).status();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<FloatOps> ops_;
};

void expect_golden(const std::string& stage, const Rows& actual, double tolerance = 1e-4) {
  SCOPED_TRACE(stage);
  const Rows expected = golden_rows(stage);
  const int stride = actual.num_rows < kRowStride ? 1 : kRowStride;
  ASSERT_EQ(actual.width, expected.width);
  ASSERT_EQ((actual.num_rows + stride - 1) / stride, expected.num_rows);
  double error = 0, norm = 0;
  for (int i = 0; i < expected.num_rows; ++i) {
    for (int c = 0; c < expected.width; ++c) {
      const double wanted = expected.row(i)[c];
      error += std::pow(actual.row(i * stride)[c] - wanted, 2);
      norm += wanted * wanted;
    }
  }
  EXPECT_GT(norm, 0);
  EXPECT_LE(std::sqrt(error / norm), tolerance);
}

TEST_F(RefinerHeadTest, EveryStageIsTheOracles) {
  const auto head = load(kGoldens / "head.safetensors");
  EXPECT_EQ(head->shape().dim, 32);
  std::map<std::string, Rows> stages;
  head->set_recorder([&](std::string_view stage, const Rows& values) {
    stages.emplace(stage, values);  // the first round's
  });
  const StatusOr<Rows> features =
      head->picture_features(golden_rows("early"), golden_rows("final"));
  ASSERT_TRUE(features.ok()) << features.status().to_string();
  Rows mask = golden_rows("coarse");
  for (int round = 0; round < 5; ++round) {
    const StatusOr<Rows> logits = head->refine(*features, mask, kSide);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    stages.emplace("logits", *logits);
    mask = *logits;
    for (float& value : mask.values) value = 1 / (1 + std::exp(-value));
  }
  expect_golden("rounds", mask, 1e-3);  // each round amplifies the one before
  for (const char* stage : {"features", "mask", "block.0.tokens", "block.0.image", "block.1.tokens",
                            "block.1.image", "tokens", "fine", "candidates", "quality", "logits"}) {
    ASSERT_TRUE(stages.contains(stage)) << stage;
    expect_golden(stage, stages.at(stage));
  }
  EXPECT_EQ(stages.size(), 11u);
}

TEST_F(RefinerHeadTest, ThePublishedSizesLoad) {
  testing_files::TemporaryFolder folder;
  const RefinerShape shape{.encoder_dim = kEncoderDim, .dim = 256, .grid = kGrid};
  ASSERT_TRUE(write_random_weights(refiner_tensors(shape), 1, folder.path()).ok());
  const auto head = load(folder.path() / "model.safetensors");
  EXPECT_EQ(head->shape().dim, 256);
  EXPECT_GT(head->weight_bytes(), 4u << 20);
}

TEST_F(RefinerHeadTest, WrongFilesAreRefused) {
  testing_files::TemporaryFolder folder;
  const RefinerShape shape{.encoder_dim = kEncoderDim, .dim = 32, .grid = kGrid};
  std::vector<WeightSpec> tensors = refiner_tensors(shape);
  const auto error_with = [&](const std::vector<WeightSpec>& list) {
    EXPECT_TRUE(write_random_weights(list, 1, folder.path()).ok());
    const Status status = error_of(folder.path() / "model.safetensors");
    EXPECT_NE(status.message().find("model.safetensors"), std::string::npos);
    return std::string(status.message());
  };
  const auto has = [](const std::string& text) { return testing::HasSubstr(text); };

  EXPECT_FALSE(error_of(folder.path() / "nowhere.safetensors").ok());
  std::vector<WeightSpec> changed = tensors;
  std::erase_if(changed, [](const WeightSpec& spec) { return spec.name == "mask_tokens"; });
  EXPECT_THAT(error_with(changed), has("has no tensor 'mask_tokens', so it is no refiner"));
  changed = tensors;
  std::erase_if(changed, [](const WeightSpec& spec) { return spec.name == "iou_head.4.bias"; });
  EXPECT_THAT(error_with(changed), has("tensor 'iou_head.4.bias' is missing"));
  changed = tensors;
  changed.push_back({.name = "text.wte", .shape = {2, 2}});
  EXPECT_THAT(error_with(changed), has("tensor 'text.wte' is not one of this model's"));
  for (WeightSpec& spec : changed = tensors) {
    if (spec.name == "mask_tokens") spec.shape = {4, 33};
  }
  EXPECT_THAT(error_with(changed), has("[4, N] is expected, N a multiple of 32"));
  for (WeightSpec& spec : changed = tensors) {
    if (spec.name == "upsample.6.weight") spec.shape = {8, 16, 2, 2};
  }
  EXPECT_THAT(error_with(changed), has("tensor 'upsample.6.weight' has shape [8, 16, 2, 2]; the "
                                       "configuration says [16, 8, 2, 2]"));
  // Of another vision encoder.
  EXPECT_TRUE(write_random_weights(tensors, 1, folder.path()).ok());
  EXPECT_THAT(std::string(error_of(folder.path() / "model.safetensors", 1152).message()),
              has("tensor 'image_proj.weight' has shape [32, 64, 1, 1]; the configuration says "
                  "[32, 1152, 1, 1]"));
}

}  // namespace
}  // namespace gapless
