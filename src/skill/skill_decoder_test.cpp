#include "skill/skill_decoder.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "skill/token_logprob.h"

namespace gapless {
namespace {

constexpr AnswerTokenIds kIds{.coord = TokenId(5),
                              .size = TokenId(6),
                              .answer = TokenId(3),
                              .start_ground_points = TokenId(7),
                              .end_ground = TokenId(9)};

class SkillDecoderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(GAPLESS_SOURCE_DIR "/models/tiny/tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_.emplace(std::move(loaded).value());
  }

  std::unique_ptr<SkillDecoder> make(Skill skill, std::vector<std::string> stop = {}) {
    SkillRequest request;
    request.skill = skill;
    request.settings.stop = std::move(stop);
    return make_skill_decoder(request, *tokenizer_, kIds);
  }

  std::vector<TokenId> encode(const std::string& text) { return tokenizer_->encode(text).value(); }

  static SkillResult result_of(const SkillDecoder& decoder) {
    SkillResult result;
    decoder.fill(result);
    return result;
  }

  std::optional<Tokenizer> tokenizer_;
};

TEST_F(SkillDecoderTest, TextArrivesInPiecesThatMakeTheWhole) {
  const std::string text = "a gr\u00fcn star \u2605 and 3 circles";
  auto decoder = make(Skill::kQuery);
  std::string streamed;
  for (const TokenId id : encode(text)) streamed += decoder->push({id, 0, 0});
  streamed += decoder->finish();
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(result_of(*decoder).text, text);
}

// A call is no text, also where the model decides by itself to make one.
TEST_F(SkillDecoderTest, CallsOfAChatWithToolsAreTakenOutOfItsText) {
  const std::string call =
      R"(<tool_call>{"name": "time", "arguments": {"city": "Rome"}}</tool_call>)";
  SkillRequest request;
  request.tools = ToolUse{
      .tools = {
          boost::json::parse(R"({"type": "function", "function": {"name": "time"}})").as_object()}};
  for (const auto chat : {std::optional(ChatTemplate::kQwen3), std::optional<ChatTemplate>()}) {
    auto decoder = make_skill_decoder(request, *tokenizer_, kIds, chat);
    std::string streamed;
    for (const TokenId id : encode("Wait. " + call)) streamed += decoder->push({id, 0, 0});
    streamed += decoder->finish();
    const SkillResult result = result_of(*decoder);
    EXPECT_EQ(streamed, result.text);
    if (!chat) {
      EXPECT_EQ(result.text, "Wait. " + call);
      continue;
    }
    EXPECT_EQ(result.text, "Wait.");
    ASSERT_EQ(result.tool_calls.size(), 1u);
    EXPECT_EQ(result.tool_calls[0], (ToolCall{"time", R"({"city": "Rome"})"}));
  }
  request.tools->tools.push_back(
      boost::json::parse(R"({"type": "function", "function": {"name": "place"}})").as_object());
  request.tools->only = "place";
  EXPECT_EQ(request.tools->callable().size(), 1u);
}

TEST_F(SkillDecoderTest, StopStringEndsTheTextBeforeIt) {
  auto decoder = make(Skill::kCaption, {" star"});
  std::string streamed;
  for (const TokenId id : encode("a red star and more")) streamed += decoder->push({id, 0, 0});
  EXPECT_TRUE(decoder->stopped());
  streamed += decoder->finish();
  EXPECT_EQ(streamed, "a red");
  EXPECT_EQ(result_of(*decoder).text, "a red");
}

// Pushes the tokens of a text one by one: how many are final after each, and after the end.
std::vector<int> final_counts(SkillDecoder& decoder, const std::vector<TokenId>& ids) {
  std::vector<int> counts;
  for (const TokenId id : ids) {
    decoder.push({id, 0, 0});
    counts.push_back(decoder.num_final_tokens());
  }
  decoder.finish();
  counts.push_back(decoder.num_final_tokens());
  return counts;
}

TEST_F(SkillDecoderTest, TokensAreFinalWithTheirText) {
  const std::vector<TokenId> ids = encode("xyz");
  ASSERT_EQ(ids.size(), 3u);
  auto plain = make(Skill::kQuery);
  EXPECT_EQ(final_counts(*plain, ids), (std::vector<int>{1, 2, 3, 3}));
  auto held_back = make(Skill::kQuery, {"yzw"});
  EXPECT_EQ(final_counts(*held_back, ids), (std::vector<int>{1, 1, 1, 3}));
  auto cut = make(Skill::kQuery, {"yz"});
  EXPECT_EQ(final_counts(*cut, ids), (std::vector<int>{1, 1, 1, 1}));
  auto all_cut = make(Skill::kQuery, {"x"});
  EXPECT_EQ(final_counts(*all_cut, {ids[0]}), (std::vector<int>{0, 0}));
}

TEST_F(SkillDecoderTest, ATokenThatAStopStringCutsInTwoIsFinal) {
  const std::vector<TokenId> ids = encode(" circle");
  ASSERT_EQ(ids.size(), 1u) << "the tokenizer has a token for it";
  auto decoder = make(Skill::kQuery, {"rcle"});
  EXPECT_EQ(final_counts(*decoder, ids), (std::vector<int>{1, 1}));
  EXPECT_EQ(result_of(*decoder).text, " ci");
}

TEST_F(SkillDecoderTest, TokensOfOneCharacterAreFinalTogether) {
  const std::vector<TokenId> ids = encode("\u2605");
  ASSERT_EQ(ids.size(), 3u) << "a token for each byte";
  auto whole = make(Skill::kQuery);
  EXPECT_EQ(final_counts(*whole, ids), (std::vector<int>{0, 0, 3, 3}));
  auto unfinished = make(Skill::kQuery);
  EXPECT_EQ(final_counts(*unfinished, {ids[0], ids[1]}), (std::vector<int>{0, 0, 2}));
  EXPECT_EQ(result_of(*unfinished).text, "\uFFFD");
  auto cut = make(Skill::kQuery, {"\u2605"});
  EXPECT_EQ(final_counts(*cut, ids), (std::vector<int>{0, 0, 0, 0}));
  auto replaced = make(Skill::kQuery, {"\uFFFD"});  // the stop string appears at the end only
  EXPECT_EQ(final_counts(*replaced, {ids[0], ids[1]}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(result_of(*replaced).text, "");
}

TEST_F(SkillDecoderTest, SpecialTokensAreFinalWithWhatFollows) {
  const std::vector<TokenId> ids = encode("xy");
  auto decoder = make(Skill::kQuery);
  EXPECT_EQ(final_counts(*decoder, {ids[0], TokenId(1), ids[1], TokenId(2)}),
            (std::vector<int>{1, 1, 3, 3, 4}));
}

TEST_F(SkillDecoderTest, TokensWithValuesAreFinalAtOnce) {
  auto decoder = make(Skill::kDetect);
  EXPECT_EQ(final_counts(*decoder, {kIds.coord, kIds.coord, kIds.size}),
            (std::vector<int>{1, 2, 3, 3}));
}

TEST_F(SkillDecoderTest, ScoredTokensSpellPartsOfCharacters) {
  const ScoredToken part = score_token(*tokenizer_, encode("\u2605")[0], -0.5f);
  EXPECT_EQ(part.text, "\\xe2");
  EXPECT_EQ(part.bytes, "\xE2");
  EXPECT_EQ(part.logprob, -0.5f);
  const ScoredToken word = score_token(*tokenizer_, encode(" circle")[0], 0);
  EXPECT_EQ(word.text, " circle");
  EXPECT_EQ(word.bytes, " circle");
  const ScoredToken special = score_token(*tokenizer_, kIds.coord, 0);
  EXPECT_EQ(special.text, "<|coord|>");
  EXPECT_EQ(special.bytes, std::nullopt);
}

TEST_F(SkillDecoderTest, ReasoningComesBeforeTheAnswerWithItsPoints) {
  SkillRequest request;
  request.reasoning = true;
  request.settings.stop = {" star"};
  auto decoder = make_skill_decoder(request, *tokenizer_, kIds);
  std::string reasoning, answer;
  const auto push = [&](TokenId id, float value = 0) {
    answer += decoder->push({id, value, 0});
    reasoning += decoder->take_reasoning();
  };
  const auto push_text = [&](const std::string& text) {
    for (const TokenId id : encode(text)) push(id);
  };
  push_text("a star ★ at");  // no stop string counts here
  push(kIds.start_ground_points);
  push_text(" grün");
  for (const float value : {0.25f, 0.5f, 0.75f, 1.0f, 0.125f}) push(kIds.coord, value);
  push(kIds.end_ground);
  push_text(" so");
  push(kIds.start_ground_points);
  push(kIds.coord, 0.5f);  // alone: no point
  EXPECT_EQ(answer, "");
  EXPECT_EQ(decoder->num_final_tokens(), 0);
  push(kIds.answer);
  const int num_before = decoder->num_reasoning_tokens();
  push_text("one star and more");
  EXPECT_TRUE(decoder->stopped());
  answer += decoder->finish();
  EXPECT_EQ(decoder->num_reasoning_tokens(), num_before);
  EXPECT_EQ(decoder->num_final_tokens(), 1);

  const SkillResult result = result_of(*decoder);
  EXPECT_EQ(answer, "one");
  EXPECT_EQ(result.text, "one");
  ASSERT_TRUE(result.reasoning);
  EXPECT_EQ(result.reasoning->text, "a star ★ at grün so");
  EXPECT_EQ(reasoning, result.reasoning->text);
  EXPECT_EQ(result.metrics.reasoning_tokens, num_before);
  ASSERT_EQ(result.reasoning->grounding.size(), 1u);
  const Grounding& part = result.reasoning->grounding[0];
  EXPECT_EQ(part.start_idx, 11) << "characters, not bytes";
  EXPECT_EQ(part.end_idx, 16);
  ASSERT_EQ(part.points.size(), 2u);
  EXPECT_EQ(part.points[1].x, 0.75f);
  EXPECT_EQ(part.points[1].y, 1.0f);
}

TEST_F(SkillDecoderTest, ReasoningThatIsCutOffHasNoAnswer) {
  SkillRequest request;
  request.reasoning = true;
  auto decoder = make_skill_decoder(request, *tokenizer_, kIds);
  const std::vector<TokenId> star = encode("★");
  decoder->push({encode("x")[0], 0, 0});
  decoder->push({star[0], 0, 0});
  EXPECT_EQ(decoder->take_reasoning(), "x");
  EXPECT_EQ(decoder->finish(), "");
  EXPECT_EQ(decoder->take_reasoning(), "\uFFFD");
  const SkillResult result = result_of(*decoder);
  EXPECT_EQ(result.reasoning->text, "x\uFFFD");
  EXPECT_EQ(result.text, "");
}

TEST_F(SkillDecoderTest, TheEndOfReasoningMayBeFedAgain) {
  SkillRequest request;
  request.reasoning = true;
  AnswerTokenIds ids = kIds;
  ids.num_answers_fed_again = 1;
  auto decoder = make_skill_decoder(request, *tokenizer_, ids);
  std::string answer;
  for (const TokenId id : {encode("x")[0], ids.answer, ids.answer, encode("y")[0]}) {
    answer += decoder->push({id, 0, 0});
  }
  EXPECT_EQ(answer, "y");
  EXPECT_EQ(decoder->num_reasoning_tokens(), 3);
}

TEST_F(SkillDecoderTest, PointsPairUpAndAnOddCoordinateIsDropped) {
  auto decoder = make(Skill::kPoint);
  for (const float value : {0.1f, 0.2f, 0.3f, 0.4f, 0.5f}) {
    EXPECT_EQ(decoder->push({kIds.coord, value, 0}), "");
  }
  const SkillResult result = result_of(*decoder);
  ASSERT_EQ(result.points.size(), 2u);
  EXPECT_FLOAT_EQ(result.points[1].x, 0.3f);
  EXPECT_FLOAT_EQ(result.points[1].y, 0.4f);
}

TEST_F(SkillDecoderTest, ABoxHasTheLastTwoCoordinatesBeforeItsSize) {
  auto decoder = make(Skill::kDetect);
  for (const float value : {0.1f, 0.2f, 0.5f, 0.25f}) decoder->push({kIds.coord, value, 0});
  decoder->push({kIds.size, 0.5f, 0.5f});
  const SkillResult result = result_of(*decoder);
  ASSERT_EQ(result.boxes.size(), 1u);
  EXPECT_FLOAT_EQ(result.boxes[0].x_min, 0.25f);
  EXPECT_FLOAT_EQ(result.boxes[0].y_max, 0.5f);
}

TEST_F(SkillDecoderTest, EachObjectHasTheConfidencesOfItsTokens) {
  SkillRequest request;
  request.skill = Skill::kDetect;
  for (const bool asks : {false, true}) {
    request.settings.confidence = asks;
    auto decoder = make_skill_decoder(request, *tokenizer_, kIds);
    for (const float sure : {0.5f, 0.75f}) {
      decoder->push({kIds.coord, 0.5f, 0, {.token = sure, .x = 0.25f}});
      decoder->push({kIds.coord, 0.5f, 0, {.token = 1, .x = 0.125f}});
      decoder->push({kIds.size, 0.5f, 0.5f, {.token = 1, .x = 0.3f, .y = 0.4f}});
    }
    decoder->push({kIds.coord, 0.5f, 0, {.token = 0.1f, .x = 0.25f}});  // cut off
    const SkillResult result = result_of(*decoder);
    ASSERT_EQ(result.confidences.size(), asks ? 2u : 0u);
    if (!asks) continue;
    EXPECT_EQ(result.confidences[0].object, 0.5f);
    EXPECT_EQ(result.confidences[1].object, 0.75f);
    EXPECT_EQ(result.confidences[1].bins, (std::vector<float>{0.25f, 0.125f, 0.3f, 0.4f}));
  }
}

TEST_F(SkillDecoderTest, WidthAndHeightAreApart) {
  auto decoder = make(Skill::kDetect);
  decoder->push({kIds.coord, 0.5f, 0});
  decoder->push({kIds.coord, 0.5f, 0});
  decoder->push({kIds.size, 0.25f, 0.75f});
  const SkillResult result = result_of(*decoder);
  ASSERT_EQ(result.boxes.size(), 1u);
  EXPECT_FLOAT_EQ(result.boxes[0].x_min, 0.375f);
  EXPECT_FLOAT_EQ(result.boxes[0].y_min, 0.125f);
  EXPECT_FLOAT_EQ(result.boxes[0].x_max, 0.625f);
  EXPECT_FLOAT_EQ(result.boxes[0].y_max, 0.875f);
}

TEST_F(SkillDecoderTest, BoxesAreCentreAndSizeClampedToTheImage) {
  auto decoder = make(Skill::kDetect);
  decoder->push({kIds.coord, 0.5f, 0});
  decoder->push({kIds.coord, 0.9f, 0});
  decoder->push({kIds.size, 0.5f, 0.4f});
  decoder->push({kIds.coord, 0.1f, 0});  // cut off by the length limit
  const SkillResult result = result_of(*decoder);
  ASSERT_EQ(result.boxes.size(), 1u);
  EXPECT_FLOAT_EQ(result.boxes[0].x_min, 0.25f);
  EXPECT_FLOAT_EQ(result.boxes[0].x_max, 0.75f);
  EXPECT_FLOAT_EQ(result.boxes[0].y_min, 0.7f);
  EXPECT_FLOAT_EQ(result.boxes[0].y_max, 1.0f);
}

}  // namespace
}  // namespace gapless
