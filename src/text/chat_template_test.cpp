// Chat templates against what transformers renders (tools/chat_goldens.py).
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <map>
#include <set>

#include "base/file_bytes.h"
#include "base/json.h"

namespace gapless {
namespace {

const std::map<std::string, ChatTemplate, std::less<>> kTemplates = {
    {"llama3", ChatTemplate::kLlama3},
    {"llama31", ChatTemplate::kLlama31},
    {"llama32", ChatTemplate::kLlama32},
    {"qwen3", ChatTemplate::kQwen3}};

boost::json::value goldens() {
  const std::string json =
      read_file(GAPLESS_SOURCE_DIR "/src/text/testdata/chat_goldens.json", 1u << 20).value();
  return parse_json(json, "chat_goldens.json").value();
}

std::vector<ChatMessage> messages_of(const boost::json::value& list) {
  std::vector<ChatMessage> messages;
  for (const boost::json::value& one : list.as_array()) {
    const std::string_view role = one.at("role").as_string();
    messages.push_back({role == "system" ? ChatRole::kSystem
                        : role == "user" ? ChatRole::kUser
                                         : ChatRole::kAssistant,
                        std::string(one.at("content").as_string())});
  }
  return messages;
}

TEST(ChatTemplate, RendersAsTransformersDoes) {
  const boost::json::value document = goldens();
  const std::string today(document.at("today").as_string());
  int num_cases = 0;
  for (const boost::json::value& one : document.at("cases").as_array()) {
    const std::string_view name = one.at("template").as_string();
    const ChatTemplate chat = kTemplates.find(name)->second;
    const std::vector<ChatPiece> pieces =
        chat_pieces(chat, messages_of(one.at("messages")),
                    {.today = today, .thinking = one.at("thinking").as_bool()});
    std::string rendered;
    std::set<std::string_view> allowed;
    for (const std::string_view token : special_tokens_of(chat)) allowed.insert(token);
    bool after_text = false;
    for (const ChatPiece& piece : pieces) {
      rendered += piece.text;
      if (piece.is_special) {
        EXPECT_TRUE(allowed.contains(piece.text)) << piece.text;
      }
      EXPECT_FALSE(after_text && !piece.is_special) << "two texts beside each other";
      after_text = !piece.is_special;
    }
    EXPECT_EQ(rendered, one.at("rendered").as_string()) << name;
    ++num_cases;
  }
  EXPECT_GE(num_cases, 60);
}

TEST(ChatTemplate, IsRecognisedByWhatItSays) {
  EXPECT_EQ(recognise_chat_template("<|start_header_id|>"), ChatTemplate::kLlama3);
  EXPECT_EQ(recognise_chat_template("<|start_header_id|> Cutting Knowledge Date"),
            ChatTemplate::kLlama31);
  EXPECT_EQ(recognise_chat_template("strftime_now <|start_header_id|> Cutting Knowledge Date"),
            ChatTemplate::kLlama32);
  EXPECT_EQ(recognise_chat_template("<|im_start|> </think>"), ChatTemplate::kQwen3);
  EXPECT_EQ(recognise_chat_template("{{ '<|im_start|>' + role + text + '<|im_end|>' }}"),
            ChatTemplate::kChatMl);
  for (const std::string_view other :
       {"", "{{ '[INST]' + text + '[/INST]' }}", "<|im_start|>system\\nYou are Qwen, <|im_end|>",
        "</think> {{- '<|im_start|>assistant\\n<think>\\n' }}"}) {
    EXPECT_FALSE(recognise_chat_template(other)) << other;
  }
}

// A person who writes a special token writes text.
TEST(ChatTemplate, SpecialTokensInAMessageStayText) {
  const std::vector<ChatMessage> messages = {{ChatRole::kUser, "a<|im_end|>b"}};
  const auto pieces = chat_pieces(ChatTemplate::kChatMl, messages, {});
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(pieces[1], (ChatPiece{false, "user\na<|im_end|>b"}));
}

// What the published templates render with these tools and messages.
std::string rendered_with_tools(ChatTemplate chat, std::span<const ChatMessage> messages,
                                bool opens_call = false) {
  const std::vector<boost::json::object> tools = {
      boost::json::parse(R"({"type":"function","function":{"name":"time","parameters":{"a":[1]}}})")
          .as_object()};
  std::string text;
  for (const ChatPiece& piece : chat_pieces(
           chat, messages, {.thinking = !opens_call, .tools = tools, .opens_call = opens_call})) {
    text += piece.text;
  }
  return text;
}

const std::vector<ChatMessage>& talk_with_calls() {
  static const std::vector<ChatMessage> messages = {
      {ChatRole::kSystem, "Be brief."},
      {ChatRole::kUser, " What time is it? "},
      {ChatRole::kAssistant, "", {{"time", R"({"a":1.0})"}}},
      {ChatRole::kTool, "12:00 \"sharp\""}};
  return messages;
}

TEST(ChatTemplate, Llama31ShowsToolsWithTheFirstMessage) {
  EXPECT_EQ(rendered_with_tools(ChatTemplate::kLlama31, talk_with_calls()),
            R"(<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Environment: ipython
Cutting Knowledge Date: December 2023
Today Date: 26 Jul 2024

Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>

Given the following functions, please respond with a JSON for a function call with its proper arguments that best answers the given prompt.

Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.Do not use variables.

{
    "type": "function",
    "function": {
        "name": "time",
        "parameters": {
            "a": [
                1
            ]
        }
    }
}

What time is it?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{"name": "time", "parameters": {"a": 1.0}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"12:00 \"sharp\""<|eot_id|><|start_header_id|>assistant<|end_header_id|>

)");
}

TEST(ChatTemplate, Qwen3ShowsToolsInTheSystemsMessage) {
  std::vector<ChatMessage> messages = talk_with_calls();
  messages.push_back({ChatRole::kTool, "or 13:00"});
  EXPECT_EQ(rendered_with_tools(ChatTemplate::kQwen3, messages), R"(<|im_start|>system
Be brief.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "time", "parameters": {"a": [1]}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
<|im_start|>user
 What time is it? <|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "time", "arguments": {"a": 1.0}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
12:00 "sharp"
</tool_response>
<tool_response>
or 13:00
</tool_response><|im_end|>
<|im_start|>assistant
)");
  // Several calls, and text in front of them.
  messages = {{ChatRole::kUser, "x"},
              {ChatRole::kAssistant, "So.", {{"time", "{}"}, {"time", "{}"}}}};
  EXPECT_NE(rendered_with_tools(ChatTemplate::kQwen3, messages)
                .find("assistant\nSo.\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n"
                      "</tool_call>\n<tool_call>\n"),
            std::string::npos);
}

TEST(ChatTemplate, APromptMayOpenTheCall) {
  const std::vector<ChatMessage> messages = {{ChatRole::kUser, "x"}};
  EXPECT_TRUE(rendered_with_tools(ChatTemplate::kQwen3, messages, true)
                  .ends_with("<think>\n\n</think>\n\n<tool_call>\n"));
  EXPECT_TRUE(rendered_with_tools(ChatTemplate::kLlama32, messages, true).ends_with("\n\n"));
}

}  // namespace
}  // namespace gapless
