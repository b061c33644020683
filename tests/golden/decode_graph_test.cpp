// A decode step can be captured once and replayed: everything that changes from step to step is
// read from device memory.
#include <gtest/gtest.h>

#include "model/model_source.h"
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

  void expect_same_tokens_in_graphs() {
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
};

TEST_F(DecodeGraphTest, ReplayedStepsGiveTheSameTokens) {
  expect_same_tokens_in_graphs();
}

// A model whose decode steps every backend composes of single ops.
class ComposedDecodeGraphTest : public DecodeGraphTest {
 protected:
  ModelConfig config() const override { return published_architecture("moondream3-small").value(); }

  // Keys and values of all pages, the trash page too, and what is known of the rows.
  std::vector<std::byte> everything() {
    std::vector<std::byte> all;
    const auto append = [&](const void* from, std::size_t bytes) {
      const auto read = driver_->read(from, bytes);
      ASSERT_TRUE(read.ok()) << read.status().to_string();
      all.insert(all.end(), read->begin(), read->end());
    };
    const DeviceState& state = model_->state();
    const auto layer_bytes = static_cast<std::size_t>(state.layer_page_bytes() * state.num_pages());
    for (int layer = 0; layer < model_->config().text.n_layers; ++layer) {
      append(state.kv_layer(layer).pages, layer_bytes);
    }
    append(state.row_states(), sizeof(RowState) * static_cast<std::size_t>(kRows));
    return all;
  }

  static constexpr int kRows = 3;
};

TEST_F(ComposedDecodeGraphTest, ReplayedStepsGiveTheSameTokens) {
  expect_same_tokens_in_graphs();
}

TEST_F(ComposedDecodeGraphTest, AStepOfDoneRowsLeavesEverythingAsItIs) {
  GAPLESS_ASSERT_OK(fill_image_slot(1));
  driver_->use_graphs();
  const std::vector<std::int32_t> rows = {2, 0, 1};
  for (const int row : rows) prefill(image_prompt(row, {1, 20 + row, 2}, 2));
  const auto last = driver_->decode(rows);
  ASSERT_TRUE(last.ok()) << last.status().to_string();
  for (const StepOutput& output : *last) EXPECT_EQ(output.outcome, StepOutcome::kLength);
  const std::vector<std::byte> before = everything();
  const std::vector<float> logits_before = logits(kRows);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto dead = driver_->decode(rows);
    ASSERT_TRUE(dead.ok()) << dead.status().to_string();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ((*dead)[i].outcome, StepOutcome::kAlreadyDone);
      EXPECT_EQ((*dead)[i].position, (*last)[i].position + 1);
    }
    EXPECT_EQ(everything(), before);
    EXPECT_EQ(logits(kRows), logits_before) << "the forward ran";
  }
  // One that lives among them, in the same graph.
  prefill(image_prompt(0, {5, 6, 7}, 2));
  const auto mixed = driver_->decode(rows);
  ASSERT_TRUE(mixed.ok()) << mixed.status().to_string();
  EXPECT_EQ((*mixed)[0].outcome, StepOutcome::kAlreadyDone);
  EXPECT_EQ((*mixed)[1].outcome, StepOutcome::kLength);
  EXPECT_NE(logits(kRows), logits_before);
}

}  // namespace
}  // namespace gapless
