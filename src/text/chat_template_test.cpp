// Chat templates against what transformers renders (tools/chat_goldens.py).
#include "text/chat_template.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gapless
