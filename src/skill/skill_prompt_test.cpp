#include "skill/skill_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/limits.h"
#include "constraint/reasoning_automaton.h"
#include "constraint/segment_automaton.h"

namespace gapless {
namespace {

constexpr PromptLimits kLimits{2048, 729, 1024};

class SkillPromptTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(GAPLESS_SOURCE_DIR "/models/tiny/tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_.emplace(std::move(loaded).value());
    builder_.emplace(*tokenizer_, TokenizerConfig());
  }

  static SkillRequest with_image(Skill skill, std::string text) {
    SkillRequest request;
    request.skill = skill;
    request.text = std::move(text);
    request.images = {std::make_shared<const std::string>("pixels")};
    return request;
  }

  StatusOr<SkillPrompt> build(const SkillRequest& request, PromptLimits limits = kLimits) {
    return build_skill_prompt(request, *builder_, limits);
  }

  std::optional<Tokenizer> tokenizer_;
  std::optional<PromptBuilder> builder_;
};

TEST_F(SkillPromptTest, ImageFollowsBosAndTheyAreThePrefix) {
  const auto prompt = build(with_image(Skill::kQuery, "why?"));
  ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
  EXPECT_EQ(prompt->prefix_len, 730);
  EXPECT_EQ(prompt->inputs[0].kind, InputKind::kText);
  EXPECT_EQ(prompt->inputs[0].id, 0);
  EXPECT_EQ(prompt->inputs[1].kind, InputKind::kImage);
  EXPECT_EQ(prompt->inputs[729].id, 728);
  EXPECT_EQ(prompt->inputs[730].id, 1);    // opens the skill's name
  EXPECT_EQ(prompt->inputs.back().id, 3);  // the answer begins
  EXPECT_EQ(prompt->row.max_generated, kDefaultMaxTokens);
  EXPECT_EQ(prompt->row.automaton, kNoAutomaton);
}

TEST_F(SkillPromptTest, SeveralImagesFollowEachOther) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  const auto one = build(request);
  request.images.push_back(std::make_shared<const std::string>("others"));
  const auto two = build(request);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(two->prefix_len, 1 + 2 * 729);
  ASSERT_EQ(two->inputs.size(), one->inputs.size() + 729);
  for (int i = 0; i < 2 * 729; ++i) {
    const TokenInput& input = two->inputs[static_cast<std::size_t>(i) + 1];
    ASSERT_EQ(input.kind, InputKind::kImage);
    ASSERT_EQ(input.id, i);
  }
  for (std::size_t i = 730; i < one->inputs.size(); ++i) {
    EXPECT_EQ(two->inputs[i + 729].id, one->inputs[i].id) << "the text is the same";
  }
}

TEST_F(SkillPromptTest, ImagesThatDoNotFitAreRefused) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  request.images.resize(3, request.images[0]);
  const auto prompt = build(request);
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(prompt.status().message().find("3 images of 729 positions each"), std::string::npos)
      << prompt.status().message();
  request.settings.max_tokens = 600;
  request.images.pop_back();
  EXPECT_NE(build(request).status().message().find("max_tokens is 600"), std::string::npos);
}

TEST_F(SkillPromptTest, HowManyImagesARequestMayHave) {
  const auto image = std::make_shared<const std::string>("pixels");
  SkillRequest request = with_image(Skill::kQuery, "why?");
  request.images.assign(kMaxImagesPerPrompt, image);
  EXPECT_TRUE(validate(request).ok());
  request.images.push_back(image);
  EXPECT_NE(validate(request).message().find("9 images, at most 8"), std::string::npos);

  request.images = {image, std::make_shared<const std::string>(""), image};
  EXPECT_EQ(validate(request).message(), "image 2 of 3 is empty");
  request.images = {image, image};
  request.spatial_refs.emplace_back();
  EXPECT_NE(validate(request).message().find("exactly one image"), std::string::npos);
  request.spatial_refs.clear();
  for (const Skill skill : {Skill::kCaption, Skill::kPoint, Skill::kDetect, Skill::kSegment}) {
    request.skill = skill;
    EXPECT_NE(validate(request).message().find("exactly one image"), std::string::npos);
  }
}

TEST_F(SkillPromptTest, TextOnlyQueryIsCausal) {
  SkillRequest request;
  request.text = "why?";
  const auto prompt = build(request);
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt->prefix_len, 0);
  EXPECT_LT(prompt->inputs.size(), 20u);
}

TEST_F(SkillPromptTest, DetectRunsOnTheDeviceAutomatonOrOnHostMasks) {
  SkillRequest request = with_image(Skill::kDetect, "star");
  request.settings.max_objects = 4;
  const auto on_device = build(request);
  ASSERT_TRUE(on_device.ok());
  EXPECT_EQ(on_device->row.automaton, automaton_start(SpatialSkill::kDetect));
  EXPECT_EQ(on_device->row.max_generated, 13);
  EXPECT_EQ(on_device->host_constraint, nullptr);

  request.constraint_mode = ConstraintMode::kHostMask;
  const auto on_host = build(request);
  ASSERT_TRUE(on_host.ok());
  EXPECT_EQ(on_host->row.automaton, kNoAutomaton);
  EXPECT_NE(on_host->row.flags & kRowHostMask, 0);
  EXPECT_NE(on_host->host_constraint, nullptr);
}

// A mask replaces no token by the one that stands for a coordinate.
TEST_F(SkillPromptTest, WithoutATokenForCoordinatesThereAreNoHostMasks) {
  TokenizerConfig config;
  config.any_token_is_coord = true;
  config.answer_id = TokenId();
  builder_.emplace(*tokenizer_, config);
  SkillRequest request = with_image(Skill::kDetect, "star");
  const auto on_device = build(request);
  ASSERT_TRUE(on_device.ok()) << on_device.status().to_string();
  EXPECT_EQ(on_device->row.automaton, automaton_start(SpatialSkill::kDetect));
  request.constraint_mode = ConstraintMode::kHostMask;
  EXPECT_NE(build(request).status().message().find("need a token for coordinates"),
            std::string::npos);
  request = with_image(Skill::kQuery, "why?");
  const auto query = build(request);
  ASSERT_TRUE(query.ok());
  EXPECT_EQ(query->row.num_denied_ids, 0);
}

TEST_F(SkillPromptTest, AGazeIsOnePoint) {
  SkillRequest request = with_image(Skill::kPoint, "gaze");
  request.spatial_refs = {{.is_box = false, .x_center = 0.25f, .y_center = 0.5f}};
  const auto gaze = build(request);
  ASSERT_TRUE(gaze.ok()) << gaze.status().to_string();
  EXPECT_EQ(gaze->row.automaton, automaton_start(SpatialSkill::kGaze));
  EXPECT_EQ(gaze->row.max_generated, 3);
  const auto coordinates = std::ranges::count_if(
      gaze->inputs, [](const TokenInput& input) { return input.kind == InputKind::kCoord; });
  EXPECT_EQ(coordinates, 2) << "the eyes";
  request.constraint_mode = ConstraintMode::kHostMask;
  EXPECT_EQ(build(request)->row.max_generated, 3);
  request.constraint_mode = ConstraintMode::kDeviceAutomaton;
  // Anything else is pointed at as often as it is there.
  request.text = "eye";
  EXPECT_EQ(build(request)->row.automaton, automaton_start(SpatialSkill::kPoint));
  request.text = "gaze";
  request.spatial_refs.push_back(request.spatial_refs.front());
  EXPECT_EQ(build(request)->row.automaton, automaton_start(SpatialSkill::kPoint));
  request.spatial_refs.clear();
  EXPECT_EQ(build(request)->row.automaton, automaton_start(SpatialSkill::kPoint));
}

// Host masks and automata alike: both give the same answers.
TEST_F(SkillPromptTest, ObjectsWhoseLogprobsNobodyAsksForSkipThem) {
  for (const Skill skill : {Skill::kDetect, Skill::kPoint, Skill::kQuery}) {
    for (const ConstraintMode mode :
         {ConstraintMode::kDeviceAutomaton, ConstraintMode::kHostMask}) {
      SkillRequest request = with_image(skill, "star");
      request.constraint_mode = mode;
      const bool has_objects = skill != Skill::kQuery;
      EXPECT_EQ((build(request)->row.flags & kRowSkipsLogprob) != 0, has_objects);
      request.settings.logprobs = true;
      EXPECT_EQ(build(request)->row.flags & kRowSkipsLogprob, 0);
    }
  }
}

TEST_F(SkillPromptTest, ASegmentRunsOnTheDeviceAutomatonOrOnHostMasks) {
  SkillRequest request = with_image(Skill::kSegment, " star ");
  EXPECT_EQ(build(request).status().field(), "skill") << "Moondream 2 has none";
  TokenizerConfig config;
  config.segment = {TokenizerConfig::ids({1, 360, 2}), TokenizerConfig::ids({3})};
  builder_.emplace(*tokenizer_, config);
  const auto plain = build(request);
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  EXPECT_EQ(plain->row.automaton, segment_start());
  EXPECT_EQ(plain->row.max_generated, kDefaultMaxTokens);
  EXPECT_EQ(plain->row.flags, kRowDecodesRegions | kRowSkipsLogprob);
  EXPECT_EQ(plain->num_region_tokens, 3);
  EXPECT_EQ(plain->host_constraint, nullptr);
  // Its template, and the name without the blank that point and detect put before it.
  std::vector<std::int32_t> ids;
  for (const TokenInput& input : plain->inputs) {
    if (input.kind == InputKind::kText) ids.push_back(input.id);
  }
  std::vector<std::int32_t> expected = {0, 1, 360, 2};
  const std::vector<TokenId> name = tokenizer_->encode("star").value();
  for (const TokenId id : name) expected.push_back(id.value);
  expected.push_back(3);
  EXPECT_EQ(ids, expected);

  request.constraint_mode = ConstraintMode::kHostMask;
  request.settings.max_tokens = 20;
  const auto on_host = build(request);
  ASSERT_TRUE(on_host.ok());
  EXPECT_EQ(on_host->row.automaton, kNoAutomaton);
  EXPECT_EQ(on_host->row.max_generated, 20);
  EXPECT_NE(on_host->host_constraint, nullptr);

  request.spatial_refs = {
      {.is_box = true, .x_center = 0.5f, .y_center = 0.5f, .width = 0.25f, .height = 0.5f}};
  EXPECT_EQ(build(request)->inputs.size(), plain->inputs.size() + 3);
}

TEST_F(SkillPromptTest, ReasoningHasItsAutomatonItsOpenerAndALimitOfItsOwn) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  const auto plain = build(request);
  request.reasoning = true;
  const auto prompt = build(request);
  ASSERT_TRUE(plain.ok() && prompt.ok()) << prompt.status().to_string();
  ASSERT_EQ(prompt->inputs.size(), plain->inputs.size());
  EXPECT_EQ(prompt->inputs.back().id, 4);
  EXPECT_EQ(prompt->row.automaton, reasoning_start());
  EXPECT_NE(prompt->row.flags & kRowDecodesRegions, 0);
  ASSERT_EQ(prompt->row.num_denied_ids, 1) << "of the answer";
  EXPECT_EQ(prompt->row.denied_ids[0], 3);
  // 2048 positions do not hold two default limits: both give way.
  EXPECT_EQ(static_cast<int>(prompt->inputs.size()) + prompt->row.max_generated, 2048);
  EXPECT_EQ(prompt->row.exit_at + 1 + prompt->row.max_after_exit, prompt->row.max_generated);
  EXPECT_LE(std::abs(prompt->row.exit_at - prompt->row.max_after_exit), 1);

  request.settings.max_tokens = 10;
  EXPECT_EQ(build(request)->row.exit_at, 10);
  EXPECT_EQ(build(request)->row.max_after_exit, 10);
  EXPECT_EQ(build(request)->row.max_generated, 21);
  TokenizerConfig fed_again;
  fed_again.num_answer_ids_fed_again = 1;
  builder_.emplace(*tokenizer_, fed_again);
  EXPECT_EQ(build(request)->row.max_after_exit, 11) << "the answer keeps its 10";
  EXPECT_EQ(build(request)->row.max_generated, 22);
}

TEST_F(SkillPromptTest, ReasoningThatDoesNotFitIsCutOrRefused) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  request.reasoning = true;
  const int num_inputs = static_cast<int>(build(request)->inputs.size());
  request.settings.max_tokens = 20;
  const PromptLimits tight{num_inputs + 40, 729, 1024};
  EXPECT_EQ(build(request, {num_inputs + 41, 729, 1024})->row.max_generated, 41);
  EXPECT_EQ(build(request, tight).status().field(), "max_tokens");
  EXPECT_NE(build(request, tight).status().message().find("for the reasoning and for the answer"),
            std::string::npos);
  request.cut_max_tokens = true;
  const auto cut = build(request, tight);
  ASSERT_TRUE(cut.ok()) << cut.status().to_string();
  EXPECT_EQ(cut->row.exit_at, 20);
  EXPECT_EQ(cut->row.max_after_exit, 19);
  EXPECT_TRUE(build(request, {num_inputs + 3, 729, 1024}).ok());
  EXPECT_EQ(build(request, {num_inputs + 2, 729, 1024}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST_F(SkillPromptTest, WhoCannotReasonSaysWhoCan) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  request.reasoning = true;
  TokenizerConfig config;
  config.query_reasoning.clear();
  builder_.emplace(*tokenizer_, config);
  const Status status = build(request).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.field(), "reasoning");
  EXPECT_NE(status.message().find("Moondream 3.1"), std::string::npos) << status.message();
}

TEST_F(SkillPromptTest, WhatReasoningDoesNotGoWith) {
  const auto field_of = [&](auto change) {
    SkillRequest request = with_image(Skill::kQuery, "why?");
    request.reasoning = true;
    change(request);
    return validate(request).field();
  };
  EXPECT_EQ(field_of([](SkillRequest&) {}), "");
  EXPECT_EQ(field_of([](SkillRequest& r) { r.skill = Skill::kPoint; }), "reasoning");
  EXPECT_EQ(field_of([](SkillRequest& r) { r.settings.min_tokens = 2; }), "min_tokens");
  EXPECT_EQ(field_of([](SkillRequest& r) {
              r.settings.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kJsonObject};
            }),
            "reasoning");
}

TEST_F(SkillPromptTest, PointsAndBoxesHaveValuesAndTextHasNone) {
  for (const ConstraintMode mode : {ConstraintMode::kDeviceAutomaton, ConstraintMode::kHostMask}) {
    for (const Skill skill : {Skill::kQuery, Skill::kCaption, Skill::kPoint, Skill::kDetect}) {
      SkillRequest request = with_image(skill, skill == Skill::kCaption ? "" : "star");
      request.constraint_mode = mode;
      const auto prompt = build(request);
      ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
      EXPECT_EQ((prompt->row.flags & kRowDecodesRegions) != 0,
                skill == Skill::kPoint || skill == Skill::kDetect)
          << skill_name(skill);
    }
  }
}

TEST_F(SkillPromptTest, PromptLongerThanTheContextIsRefused) {
  std::string question;
  for (int i = 0; i < 3000; ++i) question += "word ";
  const auto prompt = build(with_image(Skill::kQuery, question));
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(prompt.status().message().find("no room for an answer"), std::string::npos);
}

TEST_F(SkillPromptTest, MaxTokensAskedForMustFitAndTheDefaultIsCut) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  const PromptLimits tight{800, 729, 1024};
  const auto cut = build(request, tight);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(static_cast<int>(cut->inputs.size()) + cut->row.max_generated, 800);
  request.settings.max_tokens = 500;
  EXPECT_FALSE(build(request, tight).ok());
  EXPECT_EQ(build(request, tight).status().field(), "max_tokens");
}

TEST_F(SkillPromptTest, MaxTokensAreCutWhereTheRequestSaysSo) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  request.cut_max_tokens = true;
  for (const int max_tokens : {500, 100'000}) {
    request.settings.max_tokens = max_tokens;
    const auto cut = build(request, {800, 729, 1024});
    ASSERT_TRUE(cut.ok()) << cut.status().to_string();
    EXPECT_EQ(static_cast<int>(cut->inputs.size()) + cut->row.max_generated, 800);
  }
  request.settings.max_tokens = 3;
  EXPECT_EQ(build(request)->row.max_generated, 3);
}

TEST_F(SkillPromptTest, SettingsReachTheRow) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  GenerationSettings& settings = request.settings;
  settings.temperature = 0.5f;
  settings.top_p = 0.25f;
  settings.min_p = 0.125f;
  settings.top_k = -1;
  settings.repetition_penalty = 1.5f;
  settings.presence_penalty = -1;
  settings.frequency_penalty = 2;
  settings.min_tokens = 7;
  settings.seed = 99;
  settings.logprobs = true;
  settings.top_logprobs = 4;
  settings.stop_token_ids = {TokenId(17), TokenId(1023)};
  const auto prompt = build(request);
  ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
  const SamplingSettings& sampling = prompt->row.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.top_k, 0) << "-1 is off";
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.presence_penalty, -1);
  EXPECT_EQ(sampling.frequency_penalty, 2);
  EXPECT_EQ(sampling.min_tokens, 7);
  EXPECT_EQ(sampling.seed, 99u);
  EXPECT_EQ(sampling.num_top_logprobs, 4);
  ASSERT_EQ(prompt->row.num_stop_ids, 3);
  EXPECT_EQ(prompt->row.stop_ids[0], 0);
  EXPECT_EQ(prompt->row.stop_ids[1], 17);
  EXPECT_EQ(prompt->row.stop_ids[2], 1023);
  settings.ignore_eos = true;
  EXPECT_EQ(build(request)->row.num_stop_ids, 2) << "the request's own stay";
  settings.stop_token_ids.emplace_back(1024);
  EXPECT_EQ(build(request).status().field(), "stop_token_ids");
}

TEST_F(SkillPromptTest, ARowWithPenaltiesOrBiasesKnowsItsTokens) {
  SkillRequest request = with_image(Skill::kQuery, "why oh why?");
  EXPECT_TRUE(build(request)->token_notes.empty());
  EXPECT_EQ(build(request)->row.flags & kRowAdjustsLogits, 0);

  request.settings.frequency_penalty = 0.5f;
  auto prompt = build(request);
  EXPECT_NE(prompt->row.flags & kRowAdjustsLogits, 0);
  EXPECT_TRUE(prompt->token_notes.empty()) << "the prompt does not count for it";

  request.settings.logit_bias = {{TokenId(1000), 100}, {TokenId(0), -5}};
  request.settings.repetition_penalty = 1.1f;
  prompt = build(request);
  std::map<std::int32_t, TokenNote> notes;
  for (const TokenNote& note : prompt->token_notes) {
    EXPECT_TRUE(notes.emplace(note.token, note).second) << note.token << " twice";
  }
  for (const TokenInput& input : prompt->inputs) {
    if (input.kind == InputKind::kText) {
      EXPECT_EQ(notes[input.id].in_prompt, 1) << input.id;
    }
  }
  EXPECT_LE(notes.size(), prompt->inputs.size() - 730 + 2) << "images' positions are no tokens";
  EXPECT_EQ(notes[1000].bias, 100);
  EXPECT_EQ(notes[1000].in_prompt, 0);
  EXPECT_EQ(notes[0].bias, -5);
  EXPECT_EQ(notes[0].in_prompt, 1) << "BOS is a token of the prompt";

  request.settings.logit_bias = {{TokenId(1024), 1}};
  EXPECT_EQ(build(request).status().field(), "logit_bias");
}

TEST_F(SkillPromptTest, OfTwoLimitsTheSmallerOneHolds) {
  SkillRequest request = with_image(Skill::kDetect, "star");
  request.settings.max_objects = 4;  // 3 tokens each, and the one that ends the list
  request.settings.max_tokens = 100;
  EXPECT_EQ(build(request)->row.max_generated, 13);
  request.settings.max_tokens = 10;
  EXPECT_EQ(build(request)->row.max_generated, 10);
}

TEST_F(SkillPromptTest, AnAnswerNeverHoldsTheTokenThatBeginsIt) {
  const auto query = build(with_image(Skill::kQuery, "why?"));
  ASSERT_TRUE(query.ok());
  ASSERT_EQ(query->row.num_denied_ids, 1);
  EXPECT_EQ(query->row.denied_ids[0], builder_->config().answer_id.value);
}

TEST_F(SkillPromptTest, IgnoreEosHasNoStopId) {
  SkillRequest request = with_image(Skill::kQuery, "why?");
  EXPECT_EQ(build(request)->row.num_stop_ids, 1);
  request.settings.ignore_eos = true;
  EXPECT_EQ(build(request)->row.num_stop_ids, 0);
}

// A model without skills goes on with text, and ends at any of its ends.
TEST_F(SkillPromptTest, ATextModelCompletesTextAndHasSeveralEnds) {
  TokenizerConfig config = TokenizerConfig::without_skills();
  config.completes_text = true;
  config.bos_id = TokenId(7);
  config.eos_id = TokenId(8);
  config.more_eos_ids = {TokenId(9), TokenId(10)};
  builder_.emplace(*tokenizer_, config);
  SkillRequest request;
  request.text = " why?";
  request.form = QueryForm::kCompletion;
  request.settings.stop_token_ids = {TokenId(11)};
  const auto prompt = build(request);
  ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
  EXPECT_EQ(prompt->inputs.size(), 1 + tokenizer_->encode(" why?")->size());
  EXPECT_EQ(prompt->inputs[0].id, 7);
  EXPECT_EQ(prompt->prefix_len, 0);
  EXPECT_EQ(prompt->row.num_stop_ids, 4);
  EXPECT_EQ(std::vector(prompt->row.stop_ids, prompt->row.stop_ids + 4),
            (std::vector<std::int32_t>{8, 9, 10, 11}));
  EXPECT_EQ(prompt->row.num_denied_ids, 0);
  request.settings.ignore_eos = true;
  EXPECT_EQ(build(request)->row.num_stop_ids, 1);
}

TEST_F(SkillPromptTest, ATextModelRefusesWhatItCannotDo) {
  TokenizerConfig config = TokenizerConfig::without_skills();
  config.completes_text = true;
  config.why_no_chat = ": none was published";
  builder_.emplace(*tokenizer_, config);
  const auto error = [&](const SkillRequest& request) {
    const auto prompt = build(request);
    EXPECT_EQ(prompt.status().code(), StatusCode::kInvalidArgument);
    return prompt.status().message();
  };
  for (const Skill skill : {Skill::kCaption, Skill::kPoint, Skill::kDetect}) {
    EXPECT_NE(error(with_image(skill, "x")).find("text model"), std::string::npos);
  }
  SkillRequest request;
  request.text = "why?";
  EXPECT_NE(error(request).find("no query skill: it is a text model"), std::string::npos);
  request.form = QueryForm::kChat;
  request.messages = {{ChatRole::kUser, "why?"}};
  EXPECT_NE(error(request).find("no chat template: none was published"), std::string::npos);
  request.thinking = true;
  EXPECT_NE(error(request).find("think"), std::string::npos);
  EXPECT_NE(error(with_image(Skill::kQuery, "why?")).find("picture"), std::string::npos);
}

}  // namespace
}  // namespace gapless
