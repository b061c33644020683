#include "text/chat_template.h"

#include <algorithm>
#include <array>

namespace gapless {
namespace {

constexpr std::string_view kThinkBegin = "<think>", kThinkEnd = "</think>";

constexpr std::string_view role_name(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
  }
  return "";
}

class Pieces {
 public:
  void special(std::string_view token) { pieces_.push_back({true, std::string(token)}); }
  void text(std::string_view text) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().is_special) pieces_.push_back({false, ""});
    pieces_.back().text += text;
  }
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  std::vector<ChatPiece> pieces_;
};

// What Python's str.strip(), and so Jinja's trim, takes for whitespace.
constexpr std::array<std::string_view, 29> kPythonSpaces = {
    " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1C",   "\x1D",
    "\x1E",   "\x1F",   "\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002",
    "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200A",
    "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};

std::string_view trim(std::string_view text) {
  const auto begins = [&](std::string_view space) { return text.starts_with(space); };
  const auto ends = [&](std::string_view space) { return text.ends_with(space); };
  for (;;) {
    const auto space = std::ranges::find_if(kPythonSpaces, begins);
    if (space == kPythonSpaces.end()) break;
    text.remove_prefix(space->size());
  }
  for (;;) {
    const auto space = std::ranges::find_if(kPythonSpaces, ends);
    if (space == kPythonSpaces.end()) return text;
    text.remove_suffix(space->size());
  }
}

std::string_view without_leading_newlines(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  return text;
}
std::string_view without_trailing_newlines(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

void add_llama_message(Pieces& pieces, std::string_view role, std::string_view text) {
  pieces.special("<|start_header_id|>");
  pieces.text(role);
  pieces.special("<|end_header_id|>");
  pieces.text("\n\n");
  pieces.text(text);
  pieces.special("<|eot_id|>");
}

std::vector<ChatPiece> llama_pieces(ChatTemplate chat, std::span<const ChatMessage> messages,
                                    const ChatOptions& options) {
  Pieces pieces;
  pieces.special("<|begin_of_text|>");
  if (chat != ChatTemplate::kLlama3) {
    std::string system = "Cutting Knowledge Date: December 2023\nToday Date: ";
    system += chat == ChatTemplate::kLlama32 ? options.today : "26 Jul 2024";
    system += "\n\n";
    if (!messages.empty() && messages.front().role == ChatRole::kSystem) {
      system += trim(messages.front().text);
      messages = messages.subspan(1);
    }
    add_llama_message(pieces, role_name(ChatRole::kSystem), system);
  }
  for (const ChatMessage& message : messages) {
    add_llama_message(pieces, role_name(message.role), trim(message.text));
  }
  pieces.special("<|start_header_id|>");
  pieces.text(role_name(ChatRole::kAssistant));
  pieces.special("<|end_header_id|>");
  pieces.text("\n\n");
  return pieces.take();
}

bool is_tool_response(std::string_view text) {
  return text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
}

// The last message in which a person asks; what was thought before it is forgotten.
std::size_t last_query(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const ChatMessage& message = messages[i];
    if (message.role == ChatRole::kUser && !is_tool_response(message.text)) return i;
  }
  return messages.size() - 1;
}

// An earlier answer as Qwen3 reads it.
void add_qwen_answer(Pieces& pieces, std::string_view text, bool keeps_thoughts) {
  std::string_view thoughts, answer = text;
  if (text.find(kThinkEnd) != text.npos) {
    thoughts = without_trailing_newlines(text.substr(0, text.find(kThinkEnd)));
    if (const std::size_t at = thoughts.rfind(kThinkBegin); at != thoughts.npos) {
      thoughts.remove_prefix(at + kThinkBegin.size());
    }
    thoughts = without_leading_newlines(thoughts);
    answer = without_leading_newlines(text.substr(text.rfind(kThinkEnd) + kThinkEnd.size()));
  }
  if (!keeps_thoughts || thoughts.empty()) return pieces.text(answer);
  pieces.text("<think>\n");
  pieces.text(without_trailing_newlines(thoughts));
  pieces.text("\n</think>\n\n");
  pieces.text(without_leading_newlines(answer));
}

std::vector<ChatPiece> chat_ml_pieces(ChatTemplate chat, std::span<const ChatMessage> messages,
                                      const ChatOptions& options) {
  Pieces pieces;
  const std::size_t query = last_query(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    pieces.special("<|im_start|>");
    pieces.text(role_name(message.role));
    pieces.text("\n");
    if (chat == ChatTemplate::kQwen3 && message.role == ChatRole::kAssistant) {
      add_qwen_answer(pieces, message.text, i > query);
    } else {
      pieces.text(message.text);
    }
    pieces.special("<|im_end|>");
    pieces.text("\n");
  }
  pieces.special("<|im_start|>");
  pieces.text("assistant\n");
  if (chat == ChatTemplate::kQwen3 && !options.thinking) pieces.text("<think>\n\n</think>\n\n");
  return pieces.take();
}

bool says(std::string_view text, std::string_view what) {
  return text.find(what) != text.npos;
}

}  // namespace

std::string_view chat_template_name(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::kLlama3:
      return "Llama 3";
    case ChatTemplate::kLlama31:
      return "Llama 3.1";
    case ChatTemplate::kLlama32:
      return "Llama 3.2";
    case ChatTemplate::kChatMl:
      return "ChatML";
    case ChatTemplate::kQwen3:
      return "Qwen3";
  }
  return "";
}

std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja) {
  if (says(jinja, "<|start_header_id|>")) {
    if (!says(jinja, "Cutting Knowledge Date")) return ChatTemplate::kLlama3;
    return says(jinja, "strftime_now") ? ChatTemplate::kLlama32 : ChatTemplate::kLlama31;
  }
  if (!says(jinja, "<|im_start|>")) return std::nullopt;
  // Others put a system message of their own in front (Qwen2.5), or open the thoughts themselves.
  if (says(jinja, "You are ") || says(jinja, "<|im_start|>assistant\\n<think>"))
    return std::nullopt;
  return says(jinja, kThinkEnd) ? ChatTemplate::kQwen3 : ChatTemplate::kChatMl;
}

std::vector<std::string_view> special_tokens_of(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::kLlama3:
    case ChatTemplate::kLlama31:
    case ChatTemplate::kLlama32:
      return {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    case ChatTemplate::kChatMl:
    case ChatTemplate::kQwen3:
      return {"<|im_start|>", "<|im_end|>"};
  }
  return {};
}

std::vector<ChatPiece> chat_pieces(ChatTemplate chat, std::span<const ChatMessage> messages,
                                   const ChatOptions& options) {
  switch (chat) {
    case ChatTemplate::kLlama3:
    case ChatTemplate::kLlama31:
    case ChatTemplate::kLlama32:
      return llama_pieces(chat, messages, options);
    case ChatTemplate::kChatMl:
    case ChatTemplate::kQwen3:
      return chat_ml_pieces(chat, messages, options);
  }
  return {};
}

}  // namespace gapless
