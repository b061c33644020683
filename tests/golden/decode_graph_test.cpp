// A decode step can be captured once and replayed: everything that changes from step to step is
// read from device memory.
#include <gtest/gtest.h>

#include "tests/golden/random_model_fixture.h"

namespace gapless {
namespace {

class DecodeGraphTest : public RandomModelTest {
 protected:
  std::vector<StepOutput> generate(int row) {
    DriverPrompt prompt = image_prompt(row, {1, 20, 2, 30, 3}, 24);
    prompt.state.sampling.temperature = 1.0f;
    prompt.state.sampling.seed = 11;
    auto outputs = driver_->generate(prompt);
    EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
    return outputs.ok() ? std::move(outputs).value() : std::vector<StepOutput>();
  }
};

TEST_F(DecodeGraphTest, ReplayedStepsGiveTheSameTokens) {
  GAPLESS_ASSERT_OK(fill_image_slot(1));
  const std::vector<StepOutput> launched = generate(0);
  ASSERT_EQ(launched.size(), 24u);
  driver_->use_graphs();
  // Another row: the graph must not have kept the row it was captured with.
  for (const int row : {0, 2, 0}) {
    const std::vector<StepOutput> replayed = generate(row);
    ASSERT_EQ(replayed.size(), launched.size());
    for (std::size_t i = 0; i < launched.size(); ++i) {
      EXPECT_EQ(replayed[i].token, launched[i].token) << "row " << row << " step " << i;
      EXPECT_EQ(replayed[i].logprob, launched[i].logprob) << "row " << row << " step " << i;
      EXPECT_EQ(replayed[i].position, launched[i].position) << "row " << row << " step " << i;
    }
  }
}

}  // namespace
}  // namespace gapless
