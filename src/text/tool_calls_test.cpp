// What a call looks like by each template, and how calls are found in answers however they are cut.
#include "text/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "text/python_json.h"

namespace gapless {
namespace {

namespace json = boost::json;

struct Read {
  std::string text;
  std::vector<std::string> calls;  // "name(arguments)"
  friend bool operator==(const Read&, const Read&) = default;
};

void PrintTo(const Read& read, std::ostream* os) {
  *os << "'" << read.text << "' " << testing::PrintToString(read.calls);
}

// In pieces of each length, with the same outcome.
Read read(ChatTemplate chat, std::string_view answer, bool opened = false) {
  std::optional<Read> first;
  for (std::size_t piece = 1; piece <= answer.size() + 1; ++piece) {
    ToolCallReader reader(chat, {"weather", "time"}, opened);
    Read now;
    for (std::size_t at = 0; at < answer.size(); at += piece) {
      now.text += reader.push(answer.substr(at, piece));
    }
    now.text += reader.finish();
    for (const ToolCall& call : reader.calls()) {
      now.calls.push_back(call.name + "(" + call.arguments + ")");
    }
    if (!first) first = now;
    EXPECT_EQ(now, *first) << "in pieces of " << piece;
  }
  return *first;
}

constexpr auto kQwen = ChatTemplate::kQwen3;
constexpr auto kLlama = ChatTemplate::kLlama31;

TEST(ToolCalls, QwenMarksItsCalls) {
  const std::string weather =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
      "2}}\n</tool_call>";
  const std::string paris = R"(weather({"city": "Paris", "days": 2}))";
  EXPECT_EQ(read(kQwen, weather), (Read{"", {paris}}));
  EXPECT_EQ(read(kQwen, "Let me see. \n" + weather), (Read{"Let me see.", {paris}}));
  EXPECT_EQ(read(kQwen, weather + "\n" + weather + "\n"), (Read{"", {paris, paris}}));
  // Cut off by the end, and what a prompt has opened.
  EXPECT_EQ(read(kQwen, weather.substr(0, weather.size() - 13)), (Read{"", {paris}}));
  EXPECT_EQ(read(kQwen, weather.substr(12, weather.size() - 25), true), (Read{"", {paris}}));
  // A thought speaks of a call.
  EXPECT_EQ(read(kQwen, "<think>\n<tool_call> it?\n</think>\n\n" + weather),
            (Read{"<think>\n<tool_call> it?\n</think>", {paris}}));
}

TEST(ToolCalls, WhatIsNoCallOfQwensIsText) {
  for (const std::string text :
       {"Hello.", " a <tool_cal",
        "x <tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call> y",
        "<tool_call>nonsense", "<tool_call>\n{\"name\": \"time\", \"arguments\": 3}\n</tool_call>",
        "<think>forever", "  \n "}) {
    std::string expected = text;
    if (const auto at = text.find(" <tool_call>"); at != text.npos) expected.erase(at, 1);
    EXPECT_EQ(read(kQwen, text), (Read{expected, {}}));
  }
  EXPECT_EQ(read(kQwen, R"({"name": "time", "argu)", true),
            (Read{R"({"name": "time", "argu)", {}}));
}

TEST(ToolCalls, LlamasAnswerIsACallOrText) {
  const std::string call = R"({"name": "weather", "parameters": {"city": "Paris"}})";
  EXPECT_EQ(read(kLlama, call), (Read{"", {R"(weather({"city": "Paris"}))"}}));
  EXPECT_EQ(read(kLlama, "\n" + call), (Read{"", {R"(weather({"city": "Paris"}))"}}));
  EXPECT_EQ(read(kLlama, call, true), (Read{"", {R"(weather({"city": "Paris"}))"}}));
  for (const std::string& text : std::vector<std::string>{
           "Hello.", "See: " + call, call + " That is it.", R"({"name": "x", "parameters": {}})",
           R"({"name": "time", "arguments": {}})", R"({"name": "time")", R"({"a": 1})"}) {
    EXPECT_EQ(read(kLlama, text), (Read{text, {}}));
  }
}

// Text flows as soon as it cannot belong to a call any more.
TEST(ToolCalls, TextIsNotKeptWaiting) {
  ToolCallReader qwen(kQwen, {"time"}, false);
  EXPECT_EQ(qwen.push("Hel"), "Hel");
  EXPECT_EQ(qwen.push("lo <tool"), "lo");
  EXPECT_EQ(qwen.push("s>"), " <tools>");
  ToolCallReader thinks(kQwen, {"time"}, false);
  EXPECT_EQ(thinks.push("<thi"), "");
  EXPECT_EQ(thinks.push("nk>Well"), "<think>Well");
  ToolCallReader llama(kLlama, {"time"}, false);
  EXPECT_EQ(llama.push("Hel"), "Hel");
}

TEST(ToolCalls, TheSchemaOfACall) {
  const std::vector<json::object> functions = {
      json::parse(R"({"name": "weather", "parameters": {"type": "object",
          "properties": {"city": {"$ref": "#/$defs/city"}}, "$defs": {"city": {"type": "string"}}}})")
          .as_object(),
      json::parse(R"({"name": "time"})").as_object()};
  EXPECT_EQ(json::parse(tool_call_schema(kQwen, functions)), json::parse(R"({"anyOf": [
      {"type": "object", "required": ["name", "arguments"], "additionalProperties": false, "properties":
        {"name": {"const": "weather"}, "arguments": {"type": "object", "properties":
          {"city": {"$ref": "#/anyOf/0/properties/arguments/$defs/city"}}, "$defs": {"city": {"type": "string"}}}}},
      {"type": "object", "required": ["name", "arguments"], "additionalProperties": false, "properties":
        {"name": {"const": "time"}, "arguments": {"type": "object", "properties": {}, "additionalProperties": false}}}]})"));
  EXPECT_THAT(tool_call_schema(kLlama, functions),
              testing::HasSubstr("/properties/parameters/$defs"));
}

// What json.dumps(value, ensure_ascii=False) prints.
TEST(PythonJson, AsPythonPrintsIt) {
  const auto printed = [](const char* text, int indent = 0) {
    return python_json(json::parse(text), indent);
  };
  EXPECT_EQ(
      printed(R"({"a":[1,-2.0,1e16,1e-5,0.1,null,true],"b":{},"c":[],"é":"\"\\\n\u0001ü"})"),
      R"({"a": [1, -2.0, 1e+16, 1e-05, 0.1, null, true], "b": {}, "c": [], "é": "\"\\\n\u0001ü"})");
  EXPECT_EQ(printed(R"({"a":{"b":[1,2]},"c":{}})", 4),
            "{\n    \"a\": {\n        \"b\": [\n            1,\n            2\n        ]\n    },\n "
            "   \"c\": {}\n}");
  EXPECT_EQ(printed("123456789.5"), "123456789.5");
  EXPECT_EQ(printed("0.0001"), "0.0001");
}

}  // namespace
}  // namespace gapless
