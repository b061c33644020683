#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

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
      parse(Skill::kPoint, R"({"object": "x", "spatial_refs": [[0.25, 0.5], [0, 0.5, 0.5, 1]]})");
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  ASSERT_EQ(request->spatial_refs.size(), 2u);
  EXPECT_FALSE(request->spatial_refs[0].is_box);
  EXPECT_FLOAT_EQ(request->spatial_refs[0].x_center, 0.25f);
  EXPECT_TRUE(request->spatial_refs[1].is_box);
  EXPECT_FLOAT_EQ(request->spatial_refs[1].x_center, 0.25f);
  EXPECT_FLOAT_EQ(request->spatial_refs[1].height, 0.5f);
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
        BadRequest{Skill::kQuery, R"({"question": "q", "reasoning": true})",
                   "reasoning is not supported"},
        BadRequest{
            Skill::kPoint, R"({"object": "o", "spatial_refs": [[0, 0.9, 1, 0.1]]})",
            "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers "
            "from 0 to 1"},
        BadRequest{
            Skill::kPoint, R"({"object": "o", "spatial_refs": [[0.9, 0, 0.1, 1]]})",
            "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers "
            "from 0 to 1"}));

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
  EXPECT_EQ(boost::json::serialize(response_json(result)),
            R"({"request_id":"r-1","finish_reason":"stop","objects":[{"x_min":2.5E-1,"y_min":5E-1,)"
            R"("x_max":7.5E-1,"y_max":1E0}],"metrics":{"input_tokens":10,"output_tokens":4,)"
            R"("prefill_time_ms":1.5E0,"decode_time_ms":2.25E0,"ttft_ms":3E0}})");
  result.skill = Skill::kQuery;
  result.text = "yes";
  EXPECT_EQ(response_json(result).at("answer").as_string(), "yes");
}

}  // namespace
}  // namespace gapless
