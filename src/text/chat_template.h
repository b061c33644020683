// How published chat models read a conversation: their templates as code, without Jinja.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_types.h"

namespace gapless {

enum class ChatTemplate : std::uint8_t {
  kLlama3,   // header, trimmed text, <|eot_id|> per message
  kLlama31,  // and a system message with two dates in front, the second one fixed: 3.1 and 3.3
  kLlama32,  // the second date is today's
  kChatMl,   // <|im_start|>ROLE, text, <|im_end|> per message
  kQwen3,    // and what earlier answers thought is left out
};

std::string_view chat_template_name(ChatTemplate chat);

// Which one a model's published Jinja template is, by what only that one says. Nothing: none of these.
std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja);

// The special tokens that its prompts have.
std::vector<std::string_view> special_tokens_of(ChatTemplate chat);

// A special token by its spelling, or text between two of them.
struct ChatPiece {
  bool is_special = false;
  std::string text;

  friend bool operator==(const ChatPiece&, const ChatPiece&) = default;
};

struct ChatOptions {
  std::string today;     // "22 Nov 2026"; kLlama32
  bool thinking = true;  // false: kQwen3 answers at once
  // Functions that the model may call, as requests have them: {"type": "function", "function": {...}}. Only of
  // templates that take_tools() (tool_calls.h).
  std::span<const boost::json::object> tools = {};
  bool opens_call = false;  // the answer is to be a call: the prompt ends with tool_call_opening()
};

// The conversation up to where the model's answer begins. No two texts are neighbours.
std::vector<ChatPiece> chat_pieces(ChatTemplate chat, std::span<const ChatMessage> messages,
                                   const ChatOptions& options);

}  // namespace gapless
