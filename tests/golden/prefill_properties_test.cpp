// What must hold for any weights: who sees whom, and that cached, fused, batched and decoded tokens
// are the same tokens.
#include <gtest/gtest.h>

#include "constraint/spatial_automaton.h"
#include "step/automaton_walk.h"
#include "tests/golden/random_model_fixture.h"
#include "tests/per_device/kv_format_name.h"

namespace gapless {
namespace {

// The parameter: of the cache.
class PrefillPropertiesTest : public RandomModelTest, public testing::WithParamInterface<KvFormat> {
 protected:
  KvFormat kv_format() const override { return GetParam(); }
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RandomModelTest::SetUp());
    GAPLESS_ASSERT_OK(fill_image_slot(1));
  }
  int num_layers() const { return model_->config().text.n_layers; }
  int vocab() const { return model_->info().vocab; }
};

TEST_P(PrefillPropertiesTest, APromptTokenDoesNotReachThePrefix) {
  prefill(image_prompt(0, {1, 20, 2, 30, 3}));
  prefill(image_prompt(1, {1, 21, 2, 31, 3}));
  for (int layer = 0; layer < num_layers(); ++layer) {
    EXPECT_EQ(keys_and_values(0, layer, 0, prefix_len()),
              keys_and_values(1, layer, 0, prefix_len()))
        << "layer " << layer;
    // The prompts do differ.
    EXPECT_NE(keys_and_values(0, layer, prefix_len(), prefix_len() + 5),
              keys_and_values(1, layer, prefix_len(), prefix_len() + 5))
        << "layer " << layer;
  }
}

TEST_P(PrefillPropertiesTest, TheLastImagePatchReachesBosFromTheSecondLayerOn) {
  prefill(image_prompt(0, {1, 20, 2}));
  GAPLESS_ASSERT_OK(change_image_row(image_tokens() - 1));
  prefill(image_prompt(1, {1, 20, 2}));
  EXPECT_EQ(keys_and_values(0, 0, 0, 1), keys_and_values(1, 0, 0, 1));
  for (int layer = 1; layer < num_layers(); ++layer) {
    EXPECT_NE(keys_and_values(0, layer, 0, 1), keys_and_values(1, layer, 0, 1))
        << "layer " << layer;
  }
}

TEST_P(PrefillPropertiesTest, WithoutAnImageALaterTokenDoesNotReachAnEarlierOne) {
  DriverPrompt a{.row = 0, .prefix_len = 0};
  append_ids(a.inputs, {0, 1, 20, 2, 30});
  DriverPrompt b = a;
  b.row = 1;
  b.inputs.back().id = 31;
  prefill(a);
  prefill(b);
  for (int layer = 0; layer < num_layers(); ++layer) {
    EXPECT_EQ(keys_and_values(0, layer, 0, 4), keys_and_values(1, layer, 0, 4));
  }
  EXPECT_NE(keys_and_values(0, 0, 4, 5), keys_and_values(1, 0, 4, 5));
}

TEST_P(PrefillPropertiesTest, FusedEqualsPrefixThenPrompt) {
  prefill(image_prompt(0, {1, 20, 2, 30, 3}));
  const std::vector<float> fused = logits();

  prefill(image_prompt(1, {}));
  DriverPrompt suffix{.row = 1, .num_cached = prefix_len(), .prefix_len = prefix_len()};
  append_ids(suffix.inputs, {1, 20, 2, 30, 3});
  prefill(suffix);
  expect_same(logits(), fused, vocab());
}

TEST_P(PrefillPropertiesTest, ASharedPrefixGivesTheSameAsAnOwnOne) {
  prefill(image_prompt(0, {1, 20, 2, 30, 3}));
  const std::vector<float> own = logits();

  prefill(image_prompt(1, {}));
  // Two sequences at once on the prefix of row 1, whose last page is partly filled: each writes
  // into a copy of its own.
  std::vector<DriverPrompt> prompts(2);
  for (int i = 0; i < 2; ++i) {
    DriverPrompt& prompt = prompts[static_cast<std::size_t>(i)];
    prompt = {
        .row = 2 + i, .num_cached = prefix_len(), .cached_by_row = 1, .prefix_len = prefix_len()};
    append_ids(prompt.inputs, {1, 20 + i, 2, 30 + i, 3});
  }
  ASSERT_NE(prefix_len() % kPageTokens, 0);
  ASSERT_TRUE(driver_->prefill(prompts).ok());
  const std::vector<float> both = logits(2);
  const auto row_size = static_cast<std::ptrdiff_t>(vocab());
  expect_same({both.begin(), both.begin() + row_size}, own, vocab());
  EXPECT_FALSE(bits_equal(std::vector<float>(both.begin() + row_size, both.end()), own));
}

// The logits of every decode step against those of one prefill of the same tokens.
TEST_P(PrefillPropertiesTest, DecodingEqualsPrefillingTheSameTokens) {
  constexpr int kSteps = 6;
  const DriverPrompt prompt = image_prompt(0, {1, 20, 2, 30, 3}, kSteps + 1);
  DriverPrompt grown = image_prompt(1, {1, 20, 2, 30, 3});
  auto outputs = driver_->prefill({&prompt, 1});
  const std::int32_t row = 0;
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    append_ids(grown.inputs, {(*outputs)[0].token});
    outputs = driver_->decode({&row, 1});
    const std::vector<float> decoded = logits();
    prefill(grown);
    expect_same(logits(), decoded, vocab());
  }
}

// The same for points: what a coordinate feeds back is its value's encoding.
TEST_P(PrefillPropertiesTest, DecodedCoordinatesEqualPrefilledOnes) {
  constexpr int kSteps = 5;
  const TokenizerConfig& tokenizer = model_->config().tokenizer;
  DriverPrompt prompt = image_prompt(0, {1, 20, 2, 30, 3}, kSteps + 1);
  prompt.state.flags = kRowDecodesRegions;
  // The detect automaton, entered behind its first choice: y, size, then x or the end.
  const auto automata = build_spatial_automata({.coord_id = tokenizer.coord_id.value,
                                                .size_id = tokenizer.size_id.value,
                                                .eos_id = tokenizer.eos_id.value});
  const auto start = static_cast<std::size_t>(automaton_start(SpatialSkill::kDetect));
  prompt.state.automaton = automata[start].next[0];
  DriverPrompt grown = image_prompt(1, {1, 20, 2, 30, 3});
  auto outputs = driver_->prefill({&prompt, 1});
  const std::int32_t row = 0;
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    const StepOutput& output = (*outputs)[0];
    if (output.token == tokenizer.eos_id.value) break;
    const bool is_size = output.token == tokenizer.size_id.value;
    grown.inputs.push_back({.kind = is_size ? InputKind::kSize : InputKind::kCoord,
                            .id = output.token,
                            .x = output.x,
                            .y = output.y});
    outputs = driver_->decode({&row, 1});
    const std::vector<float> decoded = logits();
    prefill(grown);
    expect_same(logits(), decoded, vocab());
  }
  EXPECT_GE(grown.inputs.size(), static_cast<std::size_t>(prefix_len() + 5 + 2));
}

// Row invariance of whole steps: alone, or beside other sequences and padding. Bit for bit on every
// device (I8).
TEST_P(PrefillPropertiesTest, ASequenceDoesNotDependOnItsBatch) {
  constexpr int kSteps = 4;
  auto prompt_of = [&](int row) { return image_prompt(row, {1, 20 + row, 2, 30, 3}, kSteps + 1); };
  const DriverPrompt alone = prompt_of(1);
  std::vector<std::vector<float>> expected;
  ASSERT_TRUE(driver_->prefill({&alone, 1}).ok());
  expected.push_back(logits());
  const std::int32_t row = 1;
  for (int step = 1; step < kSteps; ++step) {
    ASSERT_TRUE(driver_->decode({&row, 1}).ok());
    expected.push_back(logits());
  }

  DriverPrompt text_only{.row = 3};
  append_ids(text_only.inputs, {0, 7, 8, 9});
  text_only.state.max_generated = 2;  // done while the others go on
  const std::vector<DriverPrompt> batch{prompt_of(0), prompt_of(1), text_only};
  ASSERT_TRUE(driver_->prefill(batch).ok());
  const std::vector<std::int32_t> rows{3, -1, 1, 0};
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0) {
      ASSERT_TRUE(driver_->decode(rows).ok());
    }
    const std::vector<float> all = logits(step == 0 ? 3 : 4);
    const auto begin = all.begin() + (step == 0 ? 1 : 2) * vocab();
    EXPECT_TRUE(bits_equal(std::vector<float>(begin, begin + vocab()),
                           expected[static_cast<std::size_t>(step)]))
        << "step " << step;
  }
}

// A detect row that skips its logprobs, alone: between x and y, and y and size, nobody computes a logit; at x those of the
// coordinate and of the end, and what lies far from them is what was there. Its answer is that of a row that has them all.
TEST_P(PrefillPropertiesTest, ObjectsReadTwoLogitsOrNone) {
  const TokenizerConfig& tokenizer = model_->config().tokenizer;
  ASSERT_LT(tokenizer.coord_id.value, 32);
  ASSERT_LT(tokenizer.eos_id.value, 32);
  constexpr int kSteps = 12;
  const auto automata = build_spatial_automata({.coord_id = tokenizer.coord_id.value,
                                                .size_id = tokenizer.size_id.value,
                                                .eos_id = tokenizer.eos_id.value});
  const auto detect = [&](std::int32_t row, std::int32_t flags) {
    DriverPrompt prompt = image_prompt(row, {1, 20, 2, 30, 3}, kSteps + 2);
    prompt.state.automaton = automaton_start(SpatialSkill::kDetect);
    prompt.state.flags = kRowDecodesRegions | kRowWantsConfidence | flags;
    // Random weights may never want another object; an end goes on with the next one, since it is no stop id here.
    prompt.state.sampling.temperature = 10;
    return prompt;
  };
  DriverPrompt plain = image_prompt(2, {1, 21, 2, 31, 3}, kSteps + 2);

  // With all logits: the rows' own, and those of the plain row.
  const DriverPrompt prompts[] = {detect(0, 0), plain};
  auto outputs = driver_->prefill(prompts);
  std::vector<std::vector<StepOutput>> expected;
  std::vector<std::vector<float>> expected_logits;
  const std::vector<std::int32_t> rows{0, 2};
  for (int step = 0; step < kSteps; ++step) {
    outputs = driver_->decode(rows);
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    expected.push_back(*outputs);
    expected_logits.push_back(logits(2));
  }
  ASSERT_EQ(expected.back()[0].outcome, StepOutcome::kContinues);

  const auto expect_answer = [&](const StepOutput& actual, const StepOutput& wanted, int step) {
    EXPECT_EQ(actual.token, wanted.token) << "step " << step;
    EXPECT_EQ(actual.x, wanted.x) << "step " << step;
    EXPECT_EQ(actual.y, wanted.y) << "step " << step;
    EXPECT_EQ(actual.confidence, wanted.confidence) << "step " << step;
    EXPECT_EQ(actual.logprob, 0) << "step " << step;
  };
  const DriverPrompt alone = detect(1, kRowSkipsLogprob);
  outputs = driver_->prefill({&alone, 1});
  ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
  const std::int32_t row = 1;
  std::vector<float> before = logits();
  RowState walked = alone.state;
  int num_x = 0;
  for (int step = 0; step < kSteps; ++step) {
    walk_automaton(automata.data(), nullptr, (*outputs)[0].token, walked);
    const bool is_x = automata[static_cast<std::size_t>(walked.automaton)].num_edges == 2;
    num_x += is_x ? 1 : 0;
    outputs = driver_->decode({&row, 1});
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    const auto at = static_cast<std::size_t>(step);
    expect_answer((*outputs)[0], expected[at][0], step);
    const std::vector<float> after = logits();
    const std::span<const float> whole(expected_logits[at]);
    for (const std::int32_t token : {tokenizer.coord_id.value, tokenizer.eos_id.value}) {
      if (is_x) {
        EXPECT_EQ(after[static_cast<std::size_t>(token)], whole[static_cast<std::size_t>(token)]);
      }
    }
    const std::size_t far = is_x ? 32 : 0;
    EXPECT_TRUE(bits_equal(std::span(after).subspan(far), std::span(before).subspan(far)))
        << "step " << step;
    EXPECT_FALSE(bits_equal(std::span(after).subspan(32), whole.subspan(32, after.size() - 32)));
    before = after;
  }
  EXPECT_GE(num_x, 2);
  EXPECT_LE(num_x, kSteps - 4);

  // Beside a plain row, which has all of its own.
  const DriverPrompt mixed[] = {detect(0, kRowSkipsLogprob), plain};
  ASSERT_TRUE(driver_->prefill(mixed).ok());
  for (int step = 0; step < kSteps; ++step) {
    outputs = driver_->decode(rows);
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    const auto at = static_cast<std::size_t>(step);
    expect_answer((*outputs)[0], expected[at][0], step);
    EXPECT_EQ((*outputs)[1].token, expected[at][1].token) << "step " << step;
    EXPECT_EQ((*outputs)[1].logprob, expected[at][1].logprob) << "step " << step;
    const std::vector<float> both = logits(2);
    EXPECT_TRUE(bits_equal(std::span(both).subspan(vocab()),
                           std::span(expected_logits[at]).subspan(vocab())))
        << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PrefillPropertiesTest,
                         testing::Values(KvFormat::kNative, KvFormat::kFp8), kv_format_name);

}  // namespace
}  // namespace gapless
