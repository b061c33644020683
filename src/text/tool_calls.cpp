#include "text/tool_calls.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <utility>

#include "base/json.h"
#include "text/python_json.h"

namespace gapless {
namespace {

namespace json = boost::json;

constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kThoughtBegin = "<think>", kThoughtEnd = "</think>";
constexpr std::string_view kBlanks = " \t\n\r";

bool is_qwen(ChatTemplate chat) {
  return chat == ChatTemplate::kQwen3;
}

std::string_view arguments_key(ChatTemplate chat) {
  return is_qwen(chat) ? "arguments" : "parameters";
}

// "#/$defs/x" of a schema that now lies at `place` of another one.
void move_references(json::value& value, std::string_view place) {
  if (value.is_array()) {
    for (json::value& item : value.get_array()) move_references(item, place);
  }
  if (!value.is_object()) return;
  for (auto& member : value.get_object()) {
    if (member.key() == "$ref" && member.value().is_string() &&
        member.value().get_string().starts_with('#')) {
      const std::string rest(member.value().get_string().subview(1));
      member.value() = json::string(std::string("#") + std::string(place) + rest);
    } else {
      move_references(member.value(), place);
    }
  }
}

// The schema of its arguments, for a document that has it at `place`.
json::value parameters_of(const json::object& function, std::string_view place) {
  const json::value* const given = function.if_contains("parameters");
  json::value parameters = json::object{
      {"type", "object"}, {"properties", json::object()}, {"additionalProperties", false}};
  if (given != nullptr && !given->is_null()) parameters = *given;
  move_references(parameters, place);
  return parameters;
}

std::size_t begin_of_text(std::string_view text) {
  return std::min(text.find_first_not_of(kBlanks), text.size());
}

// How much of the end of `text` may be the beginning of `marker`, with the blanks in front of it.
std::size_t held_back(std::string_view text, std::string_view marker) {
  std::size_t length = std::min(text.size(), marker.size() - 1);
  while (length > 0 && !text.ends_with(marker.substr(0, length))) --length;
  std::size_t end = text.size() - length;
  while (end > 0 && kBlanks.find(text[end - 1]) != kBlanks.npos) --end;
  return text.size() - end;
}

}  // namespace

bool takes_tools(ChatTemplate chat) {
  return chat == ChatTemplate::kLlama31 || chat == ChatTemplate::kLlama32 || is_qwen(chat);
}

std::string_view tool_call_opening(ChatTemplate chat) {
  return is_qwen(chat) ? "<tool_call>\n" : "";
}

CallMarkers call_markers(ChatTemplate chat) {
  if (!is_qwen(chat)) return {.arguments_key = arguments_key(chat)};
  return {.begin = kCallBegin,
          .end = kCallEnd,
          .thought_begin = kThoughtBegin,
          .thought_end = kThoughtEnd,
          .arguments_key = arguments_key(chat)};
}

std::string callable_functions(const std::vector<json::object>& functions) {
  json::array list;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const json::value* const strict = functions[i].if_contains("strict");
    list.push_back(
        json::object{{"name", functions[i].at("name")},
                     {"parameters", parameters_of(functions[i], fmt::format("/{}/parameters", i))},
                     {"strict", strict != nullptr && *strict == true}});
  }
  return json_text(list);
}

std::string tool_call_schema(ChatTemplate chat, const std::vector<json::object>& functions) {
  const std::string_view key = arguments_key(chat);
  json::array calls;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    json::value parameters =
        parameters_of(functions[i], fmt::format("/anyOf/{}/properties/{}", i, key));
    calls.push_back(
        json::object{{"type", "object"},
                     {"properties", json::object{{"name", {{"const", functions[i].at("name")}}},
                                                 {key, std::move(parameters)}}},
                     {"required", json::array{"name", json::string(key)}},
                     {"additionalProperties", false}});
  }
  return json_text(json::object{{"anyOf", std::move(calls)}});
}

ToolCallReader::ToolCallReader(ChatTemplate chat, std::vector<std::string> names, bool opened)
    : chat_(chat), names_(std::move(names)), state_(opened ? State::kCall : State::kStart) {}

bool ToolCallReader::read_call(std::string_view text) {
  const auto parsed = parse_json(text, "call");
  if (!parsed.ok() || !parsed->is_object()) return false;
  const json::object& call = parsed->get_object();
  const json::value* name = call.if_contains("name");
  const json::value* arguments = call.if_contains(arguments_key(chat_));
  if (name == nullptr || !name->is_string() || arguments == nullptr || !arguments->is_object() ||
      std::ranges::find(names_, std::string_view(name->get_string())) == names_.end()) {
    return false;
  }
  calls_.push_back({std::string(name->get_string()), python_json(*arguments)});
  return true;
}

std::string ToolCallReader::take(std::size_t count) {
  std::string taken = pending_.substr(0, count);
  pending_.erase(0, count);
  return taken;
}

std::string ToolCallReader::push(std::string_view more) {
  pending_ += more;
  if (is_qwen(chat_)) return read_marked(/*at_end=*/false);
  // Llama's answer is a call from its first character to its last, or none.
  if (state_ == State::kStart) {
    const std::size_t begin = begin_of_text(pending_);
    if (begin == pending_.size()) return {};
    state_ = pending_[begin] == '{' ? State::kCall : State::kText;
  }
  return state_ == State::kCall ? "" : std::exchange(pending_, {});
}

std::string ToolCallReader::finish() {
  if (is_qwen(chat_)) return read_marked(/*at_end=*/true);
  const std::string rest = std::exchange(pending_, {});
  return state_ == State::kCall && read_call(rest) ? "" : rest;
}

std::string ToolCallReader::end_call(std::size_t end) {
  state_ = State::kText;
  const bool is_call = read_call(std::string_view(pending_).substr(0, end));
  const std::string text = take(end == pending_.npos ? end : end + kCallEnd.size());
  if (is_call) return {};
  return (marker_was_read_ ? std::string(kCallBegin) : "") + text;
}

std::string ToolCallReader::read_marked(bool at_end) {
  std::string text;
  for (;;) {
    if (state_ == State::kStart) {
      const std::string_view rest = std::string_view(pending_).substr(begin_of_text(pending_));
      if (!at_end && kThoughtBegin.starts_with(rest)) return text;
      state_ = rest.starts_with(kThoughtBegin) ? State::kThought : State::kText;
    }
    if (state_ == State::kCall) {
      // A model may stop before it closes the call.
      const std::size_t end = pending_.find(kCallEnd);
      if (end == pending_.npos && !at_end) return text;
      text += end_call(end);
      if (pending_.empty()) return text;
    }
    const std::string_view marker = state_ == State::kThought ? kThoughtEnd : kCallBegin;
    const std::size_t at = pending_.find(marker);
    if (at == pending_.npos) {
      if (!at_end) return text + take(pending_.size() - held_back(pending_, marker));
      // What a model says after its calls is a line's end.
      const bool only_blanks = begin_of_text(pending_) == pending_.size();
      const std::string rest = std::exchange(pending_, {});
      return calls_.empty() || !only_blanks ? text + rest : text;
    }
    if (state_ == State::kThought) {
      text += take(at + kThoughtEnd.size());
      state_ = State::kText;
      continue;
    }
    // The blanks between text and call are neither's.
    const std::size_t last = std::string_view(pending_).substr(0, at).find_last_not_of(kBlanks);
    text += std::string_view(pending_).substr(0, last == pending_.npos ? 0 : last + 1);
    take(at + kCallBegin.size());
    marker_was_read_ = true;
    state_ = State::kCall;
  }
}

}  // namespace gapless
