#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/json.h"
#include "base/limits.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(JsonTest, ADocumentIsTheWholeText) {
  EXPECT_TRUE(parse_json("{\"a\": 1} \n", "x.json").ok());
  const auto error_of = [](std::string_view text) {
    const auto parsed = parse_json(text, "x.json");
    EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss) << text;
    return parsed.status().message();
  };
  for (const char* text : {"{} {}", "{}x", "[1] ]"}) {
    EXPECT_THAT(error_of(text),
                AllOf(HasSubstr("x.json: not valid JSON near byte"), HasSubstr("extra data")));
  }
  for (const char* text : {"", "{\"a\": 1"}) EXPECT_THAT(error_of(text), HasSubstr("incomplete"));
}

TEST(JsonTest, NestingIsBounded) {
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "x.json").ok());
  EXPECT_FALSE(parse_json(nested(kMaxJsonDepth + 1), "x.json").ok());
}

TEST(JsonTest, IntegersKeepToTheirRange) {
  const auto document =
      parse_json(R"({"in": {"small": -1, "good": 7, "large": 9223372036854775808, "half": 1.5}})",
                 "x.json")
          .value();
  const JsonObject fields = JsonObject::of(document, "x.json").value().object("in").value();
  EXPECT_EQ(fields.integer("good", 7, 7).value(), 7);
  for (const char* key : {"small", "large"}) {
    EXPECT_THAT(fields.integer(key, 0, 100).status().message(),
                AllOf(HasSubstr("x.json: in."), HasSubstr("must be between 0 and 100")))
        << key;
  }
  EXPECT_THAT(fields.integer("half", 0, 100).status().message(), HasSubstr("an integer"));
  EXPECT_EQ(fields.integer_or("absent", 3, 0, 100).value(), 3);
  // Above the signed range, not below it.
  EXPECT_FALSE(fields.integer("large", std::numeric_limits<std::int64_t>::min(), 100).ok());
}

}  // namespace
}  // namespace gapless
