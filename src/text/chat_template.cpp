#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>

#include "text/python_json.h"
#include "text/tool_calls.h"

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
    case ChatRole::kTool:
      return "tool";
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

// A call's arguments as templates print them; what is no JSON stays as it is.
std::string arguments_text(const ToolCall& call) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(call.arguments, error);
  return error ? call.arguments : python_json(value);
}

// The functions and the first message, which is the user's, in one.
void add_llama_tools(Pieces& pieces, std::span<const boost::json::object> tools,
                     std::string_view first_text) {
  std::string text =
      "Given the following functions, please respond with a JSON for a function call with its "
      "proper arguments that best answers the given prompt.\n\nRespond in the format {\"name\": "
      "function name, \"parameters\": dictionary of argument name and its value}.Do not use "
      "variables.\n\n";
  for (const boost::json::object& tool : tools) text += python_json(tool, 4) + "\n\n";
  add_llama_message(pieces, role_name(ChatRole::kUser), text + std::string(first_text));
}

void add_llama_turn(Pieces& pieces, const ChatMessage& message) {
  if (message.role == ChatRole::kTool) {
    return add_llama_message(pieces, "ipython", python_json(boost::json::string(message.text)));
  }
  if (message.tool_calls.empty()) {
    return add_llama_message(pieces, role_name(message.role), trim(message.text));
  }
  const ToolCall& call = message.tool_calls.front();  // it has one at most
  add_llama_message(
      pieces, role_name(message.role),
      "{\"name\": \"" + call.name + "\", \"parameters\": " + arguments_text(call) + "}");
}

std::vector<ChatPiece> llama_pieces(ChatTemplate chat, std::span<const ChatMessage> messages,
                                    const ChatOptions& options) {
  Pieces pieces;
  pieces.special("<|begin_of_text|>");
  if (chat != ChatTemplate::kLlama3) {
    std::string system = options.tools.empty() ? "" : "Environment: ipython\n";
    system += "Cutting Knowledge Date: December 2023\nToday Date: ";
    system += chat == ChatTemplate::kLlama32 ? options.today : "26 Jul 2024";
    system += "\n\n";
    if (!messages.empty() && messages.front().role == ChatRole::kSystem) {
      system += trim(messages.front().text);
      messages = messages.subspan(1);
    }
    add_llama_message(pieces, role_name(ChatRole::kSystem), system);
  }
  if (!options.tools.empty() && !messages.empty()) {
    add_llama_tools(pieces, options.tools, trim(messages.front().text));
    messages = messages.subspan(1);
  }
  for (const ChatMessage& message : messages) add_llama_turn(pieces, message);
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

// The functions, in a system message; with the conversation's own one in front, if it begins with one.
void add_qwen_tools(Pieces& pieces, std::span<const boost::json::object> tools,
                    const ChatMessage& first) {
  pieces.special("<|im_start|>");
  pieces.text("system\n");
  if (first.role == ChatRole::kSystem) pieces.text(first.text + "\n\n");
  pieces.text(
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
      "provided with function signatures within <tools></tools> XML tags:\n<tools>");
  for (const boost::json::object& tool : tools) pieces.text("\n" + python_json(tool));
  pieces.text(
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
      "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
      "\"arguments\": <args-json-object>}\n</tool_call>");
  pieces.special("<|im_end|>");
  pieces.text("\n");
}

void add_qwen_calls(Pieces& pieces, const std::vector<ToolCall>& calls, bool after_text) {
  for (const ToolCall& call : calls) {
    if (after_text || &call != &calls.front()) pieces.text("\n");
    pieces.text("<tool_call>\n{\"name\": \"" + call.name +
                "\", \"arguments\": " + arguments_text(call) + "}\n</tool_call>");
  }
}

// What functions answered, of neighbours as one message of the user.
void add_qwen_responses(Pieces& pieces, std::span<const ChatMessage> messages) {
  pieces.special("<|im_start|>");
  pieces.text("user");
  for (const ChatMessage& message : messages) {
    pieces.text("\n<tool_response>\n" + message.text + "\n</tool_response>");
  }
  pieces.special("<|im_end|>");
  pieces.text("\n");
}

// An earlier answer as Qwen3 reads it. Returns whether there is text besides thoughts.
bool add_qwen_answer(Pieces& pieces, std::string_view text, bool keeps_thoughts) {
  std::string_view thoughts, answer = text;
  if (text.find(kThinkEnd) != text.npos) {
    thoughts = without_trailing_newlines(text.substr(0, text.find(kThinkEnd)));
    if (const std::size_t at = thoughts.rfind(kThinkBegin); at != thoughts.npos) {
      thoughts.remove_prefix(at + kThinkBegin.size());
    }
    thoughts = without_leading_newlines(thoughts);
    answer = without_leading_newlines(text.substr(text.rfind(kThinkEnd) + kThinkEnd.size()));
  }
  if (!keeps_thoughts || thoughts.empty()) {
    pieces.text(answer);
    return !answer.empty();
  }
  pieces.text("<think>\n");
  pieces.text(without_trailing_newlines(thoughts));
  pieces.text("\n</think>\n\n");
  pieces.text(without_leading_newlines(answer));
  return !answer.empty();
}

std::vector<ChatPiece> chat_ml_pieces(ChatTemplate chat, std::span<const ChatMessage> messages,
                                      const ChatOptions& options) {
  Pieces pieces;
  const std::size_t query = last_query(messages);
  const bool has_tools = !options.tools.empty() && !messages.empty();
  if (has_tools) add_qwen_tools(pieces, options.tools, messages.front());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (has_tools && i == 0 && message.role == ChatRole::kSystem) continue;
    if (message.role == ChatRole::kTool) {
      const std::size_t first = i;
      while (i + 1 < messages.size() && messages[i + 1].role == ChatRole::kTool) ++i;
      add_qwen_responses(pieces, messages.subspan(first, i + 1 - first));
      continue;
    }
    pieces.special("<|im_start|>");
    pieces.text(role_name(message.role));
    pieces.text("\n");
    if (chat == ChatTemplate::kQwen3 && message.role == ChatRole::kAssistant) {
      const bool has_text = add_qwen_answer(pieces, message.text, i > query);
      add_qwen_calls(pieces, message.tool_calls, has_text);
    } else {
      pieces.text(message.text);
    }
    pieces.special("<|im_end|>");
    pieces.text("\n");
  }
  pieces.special("<|im_start|>");
  pieces.text("assistant\n");
  if (chat == ChatTemplate::kQwen3 && !options.thinking) pieces.text("<think>\n\n</think>\n\n");
  if (options.opens_call) pieces.text(tool_call_opening(chat));
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
