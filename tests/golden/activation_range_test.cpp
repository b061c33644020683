// Random weights at the depth of Moondream 2 keep activations in the range of a trained model's:
// what is measured with them (speed, rounding errors) then means something.
#include <gtest/gtest.h>

#include <cmath>

#include "testing/recorded_stages.h"
#include "tests/golden/random_model_fixture.h"

namespace gapless {
namespace {

double rms(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum / static_cast<double>(values.size()));
}

class ActivationRangeTest : public RandomModelTest {
 protected:
  ModelConfig config() const override {
    ModelConfig config = small_random_config();
    config.text.n_layers = moondream2_config().text.n_layers;
    config.vision.enc_n_layers = moondream2_config().vision.enc_n_layers;
    return config;
  }
  double rms_of(const std::string& stage) const { return rms(stages_->last(stage).values); }

  std::unique_ptr<RecordedStages> stages_;
};

TEST_F(ActivationRangeTest, TheResidualStreamNeitherGrowsNorFades) {
  stages_ = std::make_unique<RecordedStages>(*device_);
  model_->set_stage_recorder(stages_.get());
  std::vector<std::uint8_t> crop(model_->info().crop_bytes);
  for (std::size_t i = 0; i < crop.size(); ++i) {
    crop[i] = static_cast<std::uint8_t>((i * 7 + i / 1134 * 3) & 0xFF);  // stripes
  }
  const DriverImage image{.crops = crop};
  GAPLESS_ASSERT_OK(driver_->encode({&image, 1}));
  prefill(image_prompt(0, {1, 20, 2, 30, 3}));

  auto expect_steady = [&](const std::string& block, int num_layers) {
    const double first = rms_of(block + ".0");
    const double last = rms_of(block + "." + std::to_string(num_layers - 1));
    EXPECT_GT(first, 0.2);
    EXPECT_LT(last, 4.0);
    EXPECT_LT(last / first, 4.0);
    EXPECT_GT(last / first, 0.5);
    RecordProperty(
        block, fmt::format("rms {:.2f} after the first layer, {:.2f} after the last", first, last));
  };
  expect_steady("vision.block", model_->config().vision.enc_n_layers);
  expect_steady("text.block", model_->config().text.n_layers);
  EXPECT_NEAR(rms_of("vision.projection"), 1.0, 0.7);
  EXPECT_GT(rms_of("text.logits"), 1.5);
  EXPECT_LT(rms_of("text.logits"), 6.0);
  RecordProperty("logits", fmt::format("rms {:.2f}", rms_of("text.logits")));
}

}  // namespace
}  // namespace gapless
