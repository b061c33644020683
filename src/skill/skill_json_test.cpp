#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <cmath>

#include "base/json.h"
#include "base/limits.h"
#include "skill/request_json.h"
#include "skill/response_json.h"

namespace gapless {
namespace {

StatusOr<SkillRequest> parse(Skill skill, const char* text) {
  return skill_request_from_json(skill, boost::json::parse(text).as_object());
}

TEST(RequestJsonTest, ReadsQueryWithSettings) {
  const auto request = parse(Skill::kQuery, R"({"question": "why?", "settings":
      {"temperature": 1, "top_p": 0.5, "max_tokens": 7, "seed": -1, "stop": ["a", "b"]}, "new": 1})");
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  EXPECT_EQ(request->text, "why?");
  EXPECT_EQ(request->settings.temperature, 1.0f);
  EXPECT_EQ(request->settings.top_p, 0.5f);
  EXPECT_EQ(request->settings.max_tokens, 7);
  EXPECT_EQ(request->settings.seed, ~0ull);
  EXPECT_EQ(request->settings.stop, (std::vector<std::string>{"a", "b"}));
}

TEST(RequestJsonTest, AcceptsCamelCaseAndFlatSettings) {
  const auto request =
      parse(Skill::kDetect, R"({"obj": "cat", "maxObjects": 3, "settings": {"maxTokens": 9}})");
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  EXPECT_EQ(request->text, "cat");
  EXPECT_EQ(request->settings.max_objects, 3);
  EXPECT_EQ(request->settings.max_tokens, 9);
}

// Each under either name, with a value of its own.
TEST(RequestJsonTest, EachFilterHasItsOwnField) {
  const char* const requests[] = {R"({"question": "q", "top_p": 0.5, "min_p": 0.25, "top_k": 7})",
                                  R"({"question": "q", "topP": 0.5, "minP": 0.25, "topK": 7})"};
  for (const char* json : requests) {
    const auto request = parse(Skill::kQuery, json);
    ASSERT_TRUE(request.ok()) << request.status().to_string();
    EXPECT_EQ(request->settings.top_p, 0.5f) << json;
    EXPECT_EQ(request->settings.min_p, 0.25f) << json;
    EXPECT_EQ(request->settings.top_k, 7) << json;
  }
}

TEST(RequestJsonTest, EverySeedOf64BitsIsASeed) {
  for (const char* json :
       {R"({"question": "q", "seed": 18446744073709551615})", R"({"question": "q", "seed": -1})"}) {
    const auto request = parse(Skill::kQuery, json);
    ASSERT_TRUE(request.ok()) << request.status().to_string();
    EXPECT_EQ(request->settings.seed, ~0ull);
  }
}

TEST(RequestJsonTest, TwoNumbersAreAPointAndFourABox) {
  const auto request =
      parse(Skill::kPoint, R"({"object": "x", "spatial_refs": [[0.25, 0.5], [0, 0.5, 0.25, 1]]})");
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  ASSERT_EQ(request->spatial_refs.size(), 2u);
  const SpatialRef& point = request->spatial_refs[0];
  EXPECT_FALSE(point.is_box);
  EXPECT_FLOAT_EQ(point.x_center, 0.25f);
  EXPECT_FLOAT_EQ(point.y_center, 0.5f);
  const SpatialRef& box = request->spatial_refs[1];
  EXPECT_TRUE(box.is_box);
  EXPECT_FLOAT_EQ(box.x_center, 0.125f);
  EXPECT_FLOAT_EQ(box.y_center, 0.75f);
  EXPECT_FLOAT_EQ(box.width, 0.25f);
  EXPECT_FLOAT_EQ(box.height, 0.5f);
}

struct BadRequest {
  Skill skill;
  const char* json;
  const char* message;
};

class BadRequestTest : public testing::TestWithParam<BadRequest> {};

TEST_P(BadRequestTest, IsRefusedWithTheFieldsName) {
  const auto request = parse(GetParam().skill, GetParam().json);
  ASSERT_FALSE(request.ok());
  EXPECT_EQ(request.status().message(), GetParam().message);
  EXPECT_FALSE(request.status().field().empty());
  EXPECT_NE(std::string(GetParam().message).find(request.status().field()), std::string::npos)
      << request.status().field();
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadRequestTest,
    testing::Values(
        BadRequest{Skill::kQuery, R"({})", "question is missing"},
        BadRequest{Skill::kQuery, R"({"question": 3})", "question must be a string"},
        BadRequest{Skill::kDetect, R"({"object": null})", "object is missing"},
        BadRequest{Skill::kCaption, R"({"length": "huge"})",
                   "unknown caption length 'huge'; there are short, normal and long"},
        BadRequest{Skill::kQuery, R"({"question": "q", "settings": []})",
                   "settings must be an object"},
        BadRequest{Skill::kQuery, R"({"question": "q", "temperature": "hot"})",
                   "temperature must be a number"},
        BadRequest{Skill::kQuery, R"({"question": "q", "max_tokens": 1.5})",
                   "max_tokens must be an integer"},
        BadRequest{Skill::kQuery, R"({"question": "q", "max_tokens": 99999999999})",
                   "max_tokens is out of range"},
        BadRequest{Skill::kQuery, R"({"question": "q", "stop": [1]})",
                   "stop must be a string or a list of strings"},
        BadRequest{Skill::kQuery, R"({"question": "q", "reasoning": "deep"})",
                   "reasoning must be true or false"},
        BadRequest{Skill::kCaption, R"({"settings": {"guided_grammar": "root ::= x"}})",
                   "guided_grammar is not supported"},
        BadRequest{Skill::kQuery, R"({"question": "q", "guided_json": 5})",
                   "guided_json must be a JSON Schema"},
        BadRequest{Skill::kQuery, R"({"question": "q", "guided_choice": ["a", 1]})",
                   "guided_choice must be a list of strings"},
        BadRequest{Skill::kQuery,
                   R"({"question": "q", "guided_choice": ["a"], "guided_regex": "b"})",
                   "guided_choice and guided_regex both say what the answer must look like"},
        BadRequest{Skill::kQuery,
                   R"({"question": "q", "response_format": {"type": "json_schema"}})",
                   "response_format of type json_schema needs json_schema.schema"},
        BadRequest{Skill::kQuery, R"({"question": "q", "structured_outputs": {"grammar": "x"}})",
                   "structured_outputs cannot have 'grammar'; it may have json, regex, choice or "
                   "json_object"},
        BadRequest{Skill::kQuery, R"({"question": "q", "variant": "finetune"})",
                   "variant names a variant of the model, and none is served"},
        BadRequest{Skill::kQuery, R"({"question": "q", "logit_bias": [1]})",
                   "logit_bias must be an object of tokens and biases"},
        BadRequest{Skill::kQuery, R"({"question": "q", "logit_bias": {"dog": 1}})",
                   "logit_bias must have numbers of tokens as its keys, not 'dog'"},
        BadRequest{Skill::kQuery, R"({"question": "q", "logit_bias": {"-5": 1}})",
                   "logit_bias names no token with -5"},
        BadRequest{Skill::kQuery, R"({"question": "q", "logit_bias": {"5": "1"}})",
                   "logit_bias must be a number"},
        BadRequest{Skill::kQuery, R"({"question": "q", "stop_token_ids": 5})",
                   "stop_token_ids must be a list of integers"},
        BadRequest{Skill::kQuery, R"({"question": "q", "stop_token_ids": [99999999]})",
                   "stop_token_ids names no token with 99999999"},
        BadRequest{Skill::kQuery, R"({"question": "q", "min_tokens": "1"})",
                   "min_tokens must be an integer"},
        BadRequest{
            Skill::kPoint, R"({"object": "o", "spatial_refs": [[120, 0.5]]})",
            "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers "
            "from 0 to 1"},
        BadRequest{
            Skill::kPoint, R"({"object": "o", "spatial_refs": [[-0.1, 0.5]]})",
            "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers "
            "from 0 to 1"},
        BadRequest{
            Skill::kPoint, R"({"object": "o", "spatial_refs": [[0, 0.9, 1, 0.1]]})",
            "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers "
            "from 0 to 1"},
        BadRequest{
            Skill::kPoint, R"({"object": "o", "spatial_refs": [[0.9, 0, 0.1, 1]]})",
            "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers "
            "from 0 to 1"}));

TEST(RequestJsonTest, ReadsPenaltiesBiasesAndStops) {
  const auto request = parse(Skill::kQuery, R"({"question": "q", "settings":
      {"repetition_penalty": 1.25, "presencePenalty": 0.5, "frequency_penalty": -2, "min_tokens": 4,
       "logit_bias": {"17": -100, "4": 0.5}, "stop_token_ids": [3, 5], "top_k": -1}})");
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  const GenerationSettings& settings = request->settings;
  EXPECT_EQ(settings.repetition_penalty, 1.25f);
  EXPECT_EQ(settings.presence_penalty, 0.5f);
  EXPECT_EQ(settings.frequency_penalty, -2.0f);
  EXPECT_EQ(settings.min_tokens, 4);
  EXPECT_EQ(settings.logit_bias, (std::vector<LogitBias>{{TokenId(17), -100}, {TokenId(4), 0.5f}}));
  EXPECT_EQ(settings.stop_token_ids, (std::vector<TokenId>{TokenId(3), TokenId(5)}));
  EXPECT_TRUE(validate(*request).ok()) << validate(*request).to_string();
}

TEST(RequestJsonTest, ReadsWhatTheAnswerMustLookLike) {
  using Kind = GrammarSpec::Kind;
  const struct {
    const char* field;
    Kind kind;
    const char* text;
  } cases[] = {
      {R"("response_format": {"type": "json_object"})", Kind::kJsonObject, ""},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
          "schema": {"type": "null"}}})",
       Kind::kJsonSchema, R"({"type":"null"})"},
      {R"("structured_outputs": {"json": {"minimum": 0.5}, "regex": null})", Kind::kJsonSchema,
       R"({"minimum":0.5})"},
      {R"("structured_outputs": {"regex": "a+"})", Kind::kRegex, "a+"},
      {R"("structured_outputs": {"json_object": true})", Kind::kJsonObject, ""},
      {R"("guided_json": "{}")", Kind::kJsonSchema, "{}"},
      {R"("guided_regex": "[0-9]")", Kind::kRegex, "[0-9]"},
      {R"("settings": {"json_schema": {"type": "string"}})", Kind::kJsonSchema,
       R"({"type":"string"})"},
  };
  for (const auto& [field, kind, text] : cases) {
    const auto request =
        parse(Skill::kQuery, (std::string(R"({"question": "q", )") + field + "}").c_str());
    ASSERT_TRUE(request.ok()) << field << request.status().to_string();
    ASSERT_TRUE(request->settings.grammar.has_value()) << field;
    EXPECT_EQ(request->settings.grammar->kind, kind) << field;
    EXPECT_EQ(request->settings.grammar->text, text) << field;
    EXPECT_TRUE(validate(*request).ok());
  }
  const auto choice = parse(Skill::kQuery, R"({"question": "q", "guided_choice": ["a", "b"]})");
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->settings.grammar->choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(choice->settings.grammar->field, "guided_choice");
  // Other skills have a form of their own, and what has ended has no more tokens.
  auto request = parse(Skill::kPoint, R"({"object": "o", "guided_regex": "a"})").value();
  request.images.push_back(std::make_shared<const std::string>("picture"));
  EXPECT_EQ(validate(request).field(), "guided_regex");
  request =
      parse(Skill::kQuery, R"({"question": "q", "guided_regex": "a", "min_tokens": 2})").value();
  EXPECT_EQ(validate(request).field(), "min_tokens");
}

TEST(RequestJsonTest, ReasoningIsAskedFor) {
  EXPECT_FALSE(parse(Skill::kQuery, R"({"question": "q"})")->reasoning);
  EXPECT_FALSE(parse(Skill::kQuery, R"({"question": "q", "reasoning": false})")->reasoning);
  EXPECT_TRUE(parse(Skill::kQuery, R"({"question": "q", "reasoning": true})")->reasoning);
  EXPECT_TRUE(validate(*parse(Skill::kQuery, R"({"question": "q", "reasoning": true})")).ok());
  SkillRequest point = parse(Skill::kPoint, R"({"object": "o", "reasoning": true})").value();
  point.images.push_back(std::make_shared<const std::string>("picture"));
  EXPECT_EQ(validate(point).field(), "reasoning");
}

TEST(RequestJsonTest, SeveralObjectsAreNamedInAList) {
  const auto request =
      parse(Skill::kDetect, R"({"objects": ["car", "person"], "confidence": true})");
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  EXPECT_EQ(request->objects, (std::vector<std::string>{"car", "person"}));
  EXPECT_TRUE(request->settings.confidence);
  EXPECT_EQ(request_of_choice(*request, 1).text, "person");
  EXPECT_TRUE(request_of_choice(*request, 1).objects.empty());
  SkillRequest many = *request;
  many.images.push_back(std::make_shared<const std::string>("picture"));
  EXPECT_TRUE(validate(many).ok());
  many.objects.resize(kMaxChoices + 1, "x");
  EXPECT_EQ(validate(many).field(), "objects");
  many = *request;
  many.skill = Skill::kCaption;
  EXPECT_EQ(validate(many).field(), "objects");
}

TEST(ResponseJsonTest, HowSureItIsComesWithEachObject) {
  SkillResult result;
  result.skill = Skill::kPoint;
  result.points = {{0.5f, 1}, {0, 0.25f}};
  result.confidences = {{0.75f, {0.5f, 0.25f}}, {1, {0, 1}}};
  const boost::json::object json = response_json(result);
  EXPECT_EQ(json_text(json.at("points").at(0)),
            R"({"x":0.5,"y":1.0,"confidence":0.75,"bin_confidences":[0.5,0.25]})");
  EXPECT_EQ(json.at("points").at(1).at("confidence"), 1.0);
}

TEST(ResponseJsonTest, ReasoningHasItsTextAndItsPoints) {
  SkillResult result;
  result.skill = Skill::kQuery;
  result.text = "two";
  EXPECT_FALSE(response_json(result).contains("reasoning"));
  result.reasoning = Reasoning{.text = "here", .grounding = {{1, 3, {{0.1f, 0.25f}, {0.5f, 1}}}}};
  EXPECT_EQ(json_text(response_json(result).at("reasoning")),
            R"({"text":"here","grounding":[{"start_idx":1,"end_idx":3,)"
            R"("points":[[0.1,0.25],[0.5,1.0]]}]})");
}

// What would change the answer is refused; what means "off" is not.
TEST(RequestJsonTest, WhatIsNotThereIsRefusedUnlessItIsOff) {
  const char* const refused[] = {R"("reasoning": {"effort": "low"})",
                                 R"("reasoning_effort": "low")",
                                 R"("guided_grammar": "root ::= x")",
                                 R"("structural_tag": {"a": 1})",
                                 R"("structured_outputs": {"json": {}, "regex": "x"})",
                                 R"("modalities": ["text", "audio"])",
                                 R"("modalities": ["audio"])",
                                 R"("variant": "x")",
                                 R"("adapter": "a@1")",
                                 R"("tools": [{"type": "function"}])",
                                 R"("tool_choice": "required")",
                                 R"("response_format": {"type": "grammar"})",
                                 R"("best_of": 2)",
                                 R"("num_beams": 4)",
                                 R"("use_beam_search": true)",
                                 R"("typical_p": 0.9)",
                                 R"("repeat_penalty": 1.1)",
                                 R"("skip_special_tokens": false)",
                                 R"("include_stop_str_in_output": true)",
                                 R"("web_search_options": {})",
                                 R"("bad_words": ["x"])",
                                 R"("allowed_token_ids": [1])",
                                 R"("chat_template_kwargs": {"enable_thinking": true})",
                                 R"("continue_final_message": true)",
                                 R"("thinking": {"type": "enabled"})",
                                 R"("mirostat": 2)",
                                 R"("prompt_logprobs": 1)"};
  for (const std::string field : refused) {
    const auto request = parse(Skill::kQuery, (R"({"question": "q", )" + field + "}").c_str());
    ASSERT_FALSE(request.ok()) << field;
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ('"' + request.status().field() + '"', field.substr(0, field.find(':')));
  }
  const char* const accepted[] = {R"("reasoning": false)",
                                  R"("reasoning": null)",
                                  R"("reasoning": {"effort": "none"})",
                                  R"("reasoning_effort": "none")",
                                  R"("guided_json": null)",
                                  R"("structured_outputs": {})",
                                  R"("modalities": ["text"])",
                                  R"("variant": null)",
                                  R"("variant": "")",
                                  R"("tools": [])",
                                  R"("tools": [{"type": "function"}], "tool_choice": "none")",
                                  R"("tool_choice": "auto")",
                                  R"("response_format": {"type": "text"})",
                                  R"("best_of": 1)",
                                  R"("typical_p": 1.0)",
                                  R"("skip_special_tokens": true)",
                                  R"("include_stop_str_in_output": false)",
                                  R"("web_search_options": null)",
                                  R"("chat_template_kwargs": {"enable_thinking": false})",
                                  R"("thinking": {"type": "disabled"})",
                                  R"("user": "me")",
                                  R"("service_tier": "auto")",
                                  R"("store": true)",
                                  R"("metadata": {"a": "b"})",
                                  R"("what_is_this": [1, 2])"};
  for (const std::string field : accepted) {
    const auto request = parse(Skill::kQuery, (R"({"question": "q", )" + field + "}").c_str());
    EXPECT_TRUE(request.ok()) << field << ": " << request.status().to_string();
  }
}

TEST(ValidateTest, SettingsHaveBoundsAndErrorsNameThem) {
  const auto field_at_fault = [](auto&& change) {
    SkillRequest request;
    request.text = "q";
    change(request.settings);
    return validate(request).field();
  };
  using S = GenerationSettings&;
  const float nan = std::nanf("");
  EXPECT_EQ(field_at_fault([](S) {}), "");
  EXPECT_EQ(field_at_fault([](S s) { s.top_k = -1; }), "");
  EXPECT_EQ(field_at_fault([](S s) { s.top_k = -2; }), "top_k");
  EXPECT_EQ(field_at_fault([](S s) { s.temperature = -1; }), "temperature");
  EXPECT_EQ(field_at_fault([](S s) { s.top_p = 0; }), "top_p");
  EXPECT_EQ(field_at_fault([](S s) { s.top_p = 1; }), "");
  EXPECT_EQ(field_at_fault([](S s) { s.top_p = 1.01f; }), "top_p");
  EXPECT_EQ(field_at_fault([](S s) { s.min_p = 1.5f; }), "min_p");
  EXPECT_EQ(field_at_fault([](S s) { s.presence_penalty = 2; }), "");
  EXPECT_EQ(field_at_fault([](S s) { s.presence_penalty = 2.01f; }), "presence_penalty");
  EXPECT_EQ(field_at_fault([&](S s) { s.presence_penalty = nan; }), "presence_penalty");
  EXPECT_EQ(field_at_fault([](S s) { s.frequency_penalty = -2.01f; }), "frequency_penalty");
  EXPECT_EQ(field_at_fault([](S s) { s.repetition_penalty = 0; }), "repetition_penalty");
  EXPECT_EQ(field_at_fault([](S s) { s.repetition_penalty = 11; }), "repetition_penalty");
  EXPECT_EQ(field_at_fault([](S s) { s.min_tokens = -1; }), "min_tokens");
  EXPECT_EQ(field_at_fault([](S s) { s.min_tokens = 9, s.max_tokens = 8; }), "min_tokens");
  EXPECT_EQ(field_at_fault([](S s) { s.min_tokens = 8, s.max_tokens = 8; }), "");
  EXPECT_EQ(field_at_fault([](S s) { s.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(field_at_fault([](S s) { s.max_objects = 0; }), "max_objects");
  EXPECT_EQ(field_at_fault([](S s) { s.max_objects = kMaxObjects; }), "");
  EXPECT_EQ(field_at_fault([](S s) { s.max_objects = kMaxObjects + 1; }), "max_objects");
  EXPECT_EQ(field_at_fault([](S s) { s.stop = {""}; }), "stop");
  EXPECT_EQ(field_at_fault([](S s) { s.stop = {std::string(kMaxStopStringBytes, 's')}; }), "");
  EXPECT_EQ(field_at_fault([](S s) { s.stop = {std::string(kMaxStopStringBytes + 1, 's')}; }),
            "stop");
  EXPECT_EQ(field_at_fault([](S s) { s.stop_token_ids.resize(kMaxStopTokenIds); }), "");
  EXPECT_EQ(field_at_fault([](S s) { s.stop_token_ids.resize(kMaxStopTokenIds + 1); }),
            "stop_token_ids");
  EXPECT_EQ(field_at_fault([](S s) { s.top_logprobs = 2; }), "top_logprobs");
  EXPECT_EQ(field_at_fault([](S s) { s.logit_bias = {{TokenId(1), 100.5f}}; }), "logit_bias");
  EXPECT_EQ(field_at_fault([](S s) {
              s.logit_bias = {{TokenId(1), 1}, {TokenId(1), 2}};
            }),
            "logit_bias");
  const auto biases = [](int count) {
    return [count](S s) {
      for (int token = 0; token < count; ++token) s.logit_bias.push_back({TokenId(token), 1});
    };
  };
  static_assert(kMaxLogitBiases >= 300);
  EXPECT_EQ(field_at_fault(biases(kMaxLogitBiases)), "");
  EXPECT_EQ(field_at_fault(biases(kMaxLogitBiases + 1)), "logit_bias");
}

TEST(ValidateTest, JudgesWithoutPixels) {
  SkillRequest request;
  request.text = " \n";
  EXPECT_EQ(validate(request).message(), "question must not be empty");
  request.text = "q";
  EXPECT_TRUE(validate(request).ok());
  request.settings.max_tokens = 0;
  EXPECT_EQ(validate(request).message(), "max_tokens must be at least 1");
  request.settings.max_tokens = 1;
  request.settings.temperature = -1.0f;
  EXPECT_FALSE(validate(request).ok());
  request.settings.temperature = 0.5f;
  request.skill = Skill::kDetect;
  EXPECT_EQ(validate(request).message(), "detect needs an image");
}

TEST(ResponseJsonTest, KeysAreThoseThatClientsRead) {
  SkillResult result;
  result.request_id = "r-1";
  result.skill = Skill::kDetect;
  result.boxes = {{0.25f, 0.5f, 0.75f, 1.0f}};
  result.metrics = {10, 4, 1.5, 2.25, 3};
  EXPECT_EQ(json_text(response_json(result)),
            R"({"request_id":"r-1","finish_reason":"stop","objects":[{"x_min":0.25,"y_min":0.5,)"
            R"("x_max":0.75,"y_max":1.0}],"metrics":{"input_tokens":10,"output_tokens":4,)"
            R"("prefill_time_ms":1.5,"decode_time_ms":2.25,"ttft_ms":3.0}})");
  result.skill = Skill::kQuery;
  result.text = "yes";
  EXPECT_EQ(response_json(result).at("answer").as_string(), "yes");
}

}  // namespace
}  // namespace gapless
