// Region heads whose matrices lie in the layout of decode products, in the place of their rows: the same values, bit for bit.
#include <gtest/gtest.h>

#include "constraint/spatial_automaton.h"
#include "tests/golden/random_model_fixture.h"

namespace gapless {
namespace {

class PreparedRegionsTest : public RandomModelTest {
 protected:
  // Wide enough for the layout to have no padding, and for a GPU to multiply both layers at once.
  ModelConfig config() const override {
    ModelConfig config = small_random_config();
    config.region.inner_dim = 2176;
    return config;
  }

  std::vector<StepOutput> objects() {
    constexpr int kSteps = 9;
    const TokenizerConfig& tokenizer = model_->config().tokenizer;
    const auto automata = build_spatial_automata({.coord_id = tokenizer.coord_id.value,
                                                  .size_id = tokenizer.size_id.value,
                                                  .eos_id = tokenizer.eos_id.value});
    const auto start = static_cast<std::size_t>(automaton_start(SpatialSkill::kDetect));
    std::vector<StepOutput> all;
    const std::vector<std::int32_t> rows{0, 1, 2};
    for (const std::int32_t row : rows) {
      DriverPrompt prompt = image_prompt(row, {1, 20 + row, 2, 30, 3}, kSteps + 2);
      prompt.state.flags = kRowDecodesRegions | kRowWantsConfidence;
      // Before a y, a size, and the choice whether there is another object: a step has several heads.
      prompt.state.automaton = automata[start].next[0];
      if (row > 0) {
        prompt.state.automaton = automata[static_cast<std::size_t>(prompt.state.automaton)].next[0];
      }
      const auto first = driver_->prefill({&prompt, 1});
      EXPECT_TRUE(first.ok()) << first.status().to_string();
      if (first.ok()) all.push_back(first->front());
    }
    for (int step = 0; step < kSteps; ++step) {
      const auto outputs = driver_->decode(rows);
      EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
      if (outputs.ok()) all.insert(all.end(), outputs->begin(), outputs->end());
    }
    return all;
  }
};

TEST_F(PreparedRegionsTest, ValuesAreTheSame) {
  const std::vector<StepOutput> expected = objects();
  driver_.reset();
  model_.reset();
  GAPLESS_ASSERT_OK(make_model(config(), /*prepares_regions=*/true));
  const LinearWeights& matrix = model_->weights().region.decoder.coord_fc1;
  EXPECT_EQ(matrix.weight == nullptr, test_device_kind() == DeviceKind::kCuda);
  EXPECT_EQ(matrix.prepared != nullptr, test_device_kind() == DeviceKind::kCuda);
  const std::vector<StepOutput> prepared = objects();
  ASSERT_EQ(prepared.size(), expected.size());
  int num_values = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(prepared[i].token, expected[i].token) << i;
    EXPECT_EQ(prepared[i].x, expected[i].x) << i;
    EXPECT_EQ(prepared[i].y, expected[i].y) << i;
    EXPECT_EQ(prepared[i].confidence, expected[i].confidence) << i;
    num_values += expected[i].x != 0 ? 1 : 0;
  }
  EXPECT_GE(num_values, 6);
}

}  // namespace
}  // namespace gapless
