#include "server/ollama_request.h"

#include <boost/json/array.hpp>
#include <cmath>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/limits.h"
#include "server/json_body.h"
#include "skill/unsupported_fields.h"

namespace gapless {
namespace {

namespace json = boost::json;

struct Renamed {
  std::string_view ollama;
  std::string_view chat;
};

// Options that a chat request has too.
constexpr Renamed kOptions[] = {{"temperature", "temperature"},
                                {"top_k", "top_k"},
                                {"top_p", "top_p"},
                                {"min_p", "min_p"},
                                {"seed", "seed"},
                                {"stop", "stop"},
                                {"num_predict", "max_tokens"},
                                {"repeat_penalty", "repetition_penalty"},
                                {"presence_penalty", "presence_penalty"},
                                {"frequency_penalty", "frequency_penalty"}};

// Fields of the body that a chat request has under this or another name.
constexpr Renamed kFields[] = {{"stream", "stream"},
                               {"tools", "tools"},
                               {"suffix", "suffix"},
                               {"logprobs", "logprobs"},
                               {"top_logprobs", "top_logprobs"},
                               {"format", "response_format"}};

// Some clients write every number with a point, which Ollama takes.
json::value without_point(const json::value& value) {
  if (!value.is_double()) return value;
  const double number = value.get_double();
  if (std::trunc(number) != number || std::abs(number) > 9e15) return value;
  return static_cast<std::int64_t>(number);
}

bool is_number(const json::value& value, int number) {
  return value.is_number() && value.to_number<double>() == number;
}

Status must_be_absent(const json::object& body, std::string_view name, std::string_view why) {
  const json::value* value = find_field(body, name);
  const bool off = value == nullptr || *value == json::value(false) || *value == json::value("") ||
                   (value->is_array() && value->get_array().empty());
  return off ? ok_status() : invalid_field(name, "{}", why);
}

Status check_fields(const json::object& body) {
  GAPLESS_RETURN_IF_ERROR(must_be_absent(
      body, "think", "is not supported here: Moondream's and OpenAI's routes take reasoning"));
  GAPLESS_RETURN_IF_ERROR(
      must_be_absent(body, "raw", "is not supported: a prompt always gets the model's template"));
  GAPLESS_RETURN_IF_ERROR(
      must_be_absent(body, "template", "is not supported: the model's own is used"));
  GAPLESS_RETURN_IF_ERROR(must_be_absent(
      body, "context", "is not supported: send earlier turns as messages to /api/chat"));
  const json::value* keep = find_field(body, "keep_alive");
  if (keep != nullptr && !keep->is_number() && !keep->is_string()) {
    return invalid_field("keep_alive", "must be a number or a string");
  }
  return ok_status();
}

// The last so many tokens that penalties look at. Ours look at all of them.
Status read_penalty_window(json::object& options) {
  const json::value* window = find_field(options, "repeat_last_n");
  if (window == nullptr || is_number(*window, -1)) return ok_status();
  if (is_number(*window, 0)) {
    for (const char* name : {"repeat_penalty", "presence_penalty", "frequency_penalty"}) {
      options.erase(name);
    }
    return ok_status();
  }
  return invalid_field(
      "repeat_last_n",
      "must be -1 (penalties look at all of the prompt and the answer) or 0 (none)");
}

Status move_options(json::object& body, json::object& chat) {
  const json::value* found = find_field(body, "options");
  if (found == nullptr) return ok_status();
  if (!found->is_object()) return invalid_field("options", "must be an object");
  json::object options = found->get_object();
  GAPLESS_RETURN_IF_ERROR(read_penalty_window(options));
  if (const json::value* limit = find_field(options, "num_predict")) {
    const bool unlimited = limit->is_number() && limit->to_number<double>() <= 0;
    if (unlimited) options["num_predict"] = kMaxContext;  // cut to what there is
  }
  if (const json::value* seed = find_field(options, "seed")) {
    if (is_number(*seed, -1)) options.erase("seed");  // any
  }
  for (const Renamed& option : kOptions) {
    if (const json::value* value = find_field(options, option.ollama)) {
      chat[option.chat] = without_point(*value);
    }
    options.erase(option.ollama);
  }
  const json::value* newline = find_field(options, "penalize_newline");
  if (newline != nullptr && *newline != json::value(true)) {
    return invalid_field("penalize_newline", "may only be true");
  }
  return refuse_unsupported(options);
}

// "", "json" or a schema.
Status move_format(json::object& chat) {
  json::value* const format = chat.if_contains("response_format");
  if (format == nullptr || format->is_null()) return ok_status();
  if (format->is_object()) {
    json::object schema = {{"name", "format"}, {"schema", std::move(*format)}, {"strict", true}};
    *format = json::object{{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  } else if (*format == json::value("json")) {
    *format = json::object{{"type", "json_object"}};
  } else if (*format == json::value("")) {
    *format = nullptr;
  } else {
    return invalid_field("format", "must be \"json\" or a JSON schema");
  }
  return ok_status();
}

// Calls have their arguments as an object, where a chat request has them as its text.
Status rewrite_calls(json::object& message) {
  json::value* const calls = message.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return ok_status();
  for (json::value& call : calls->get_array()) {
    json::object* const fields = call.if_object();
    json::value* const function = fields == nullptr ? nullptr : fields->if_contains("function");
    if (function == nullptr || !function->is_object()) {
      return invalid_field("tool_calls", "must be objects with a function");
    }
    (*fields)["type"] = "function";
    json::value* const arguments = function->get_object().if_contains("arguments");
    if (arguments != nullptr && arguments->is_object()) *arguments = json_text(*arguments);
  }
  return ok_status();
}

// {"role", "content", "images"} -> {"role", "content": [images..., text]}
Status rewrite_message(json::value& value, bool takes_tools) {
  if (!value.is_object()) return invalid_field("messages", "must be objects");
  json::object& message = value.get_object();
  if (takes_tools) {
    GAPLESS_RETURN_IF_ERROR(rewrite_calls(message));
  } else if (find_field(message, "tool_calls") != nullptr) {
    GAPLESS_RETURN_IF_ERROR(must_be_absent(
        message, "tool_calls", "cannot be taken: this model was not trained to call tools"));
  }
  const json::value* content = find_field(message, "content");
  if (content != nullptr && !content->is_string()) {
    return invalid_field("messages", "must have strings as their content");
  }
  json::value* const images = message.if_contains("images");
  if (images == nullptr || images->is_null()) return ok_status();
  if (!images->is_array()) return invalid_field("images", "must be a list of base64 strings");
  json::array parts;
  for (json::value& image : images->get_array()) {
    if (!image.is_string()) return invalid_field("images", "must be a list of base64 strings");
    parts.push_back(json::object{{"type", "image_url"}, {"image_url", std::move(image)}});
  }
  if (content != nullptr) parts.push_back(json::object{{"type", "text"}, {"text", *content}});
  message["content"] = std::move(parts);
  message.erase("images");
  return ok_status();
}

// The messages, of which there are none when only loading is asked for.
StatusOr<json::array> messages_of_chat(json::object& body, bool takes_tools) {
  json::value* const messages = body.if_contains("messages");
  if (messages == nullptr || messages->is_null()) return json::array();
  if (!messages->is_array()) return invalid_field("messages", "must be a list");
  json::array rewritten = std::move(messages->get_array());
  for (json::value& message : rewritten) {
    GAPLESS_RETURN_IF_ERROR(rewrite_message(message, takes_tools));
  }
  return rewritten;
}

StatusOr<json::array> messages_of_generate(json::object& body) {
  GAPLESS_ASSIGN_OR_RETURN(const auto prompt, optional_string(body, "prompt"));
  GAPLESS_ASSIGN_OR_RETURN(const auto system, optional_string(body, "system"));
  json::object user = {{"role", "user"}, {"content", prompt.value_or("")}};
  if (json::value* images = body.if_contains("images")) user["images"] = std::move(*images);
  json::value message = std::move(user);
  GAPLESS_RETURN_IF_ERROR(rewrite_message(message, /*takes_tools=*/false));
  if (prompt.value_or("").empty()) return json::array();
  json::array messages;
  if (system) messages.push_back(json::object{{"role", "system"}, {"content", *system}});
  messages.push_back(std::move(message));
  return messages;
}

StatusOr<OllamaRequest> read_request(OllamaRoute route, json::object& body, bool takes_tools) {
  GAPLESS_RETURN_IF_ERROR(check_fields(body));
  json::object chat;
  GAPLESS_RETURN_IF_ERROR(move_options(body, chat));
  for (const Renamed& field : kFields) {
    if (const json::value* value = find_field(body, field.ollama)) chat[field.chat] = *value;
  }
  GAPLESS_RETURN_IF_ERROR(move_format(chat));
  json::value tools;
  if (takes_tools && chat.contains("tools")) {
    tools = std::move(chat["tools"]);
    chat.erase("tools");
  }
  GAPLESS_RETURN_IF_ERROR(refuse_unsupported(chat));
  if (!tools.is_null()) chat["tools"] = std::move(tools);
  StatusOr<json::array> messages = route == OllamaRoute::kChat ? messages_of_chat(body, takes_tools)
                                                               : messages_of_generate(body);
  if (!messages.ok()) return messages.status();
  OllamaRequest request;
  if (messages->empty()) {
    request.only_loads = true;
    return request;
  }
  chat["messages"] = std::move(messages).value();
  if (!chat.contains("stream")) chat["stream"] = true;
  GAPLESS_ASSIGN_OR_RETURN(request.chat, chat_request_from_json(chat, takes_tools));
  request.chat.skill.cut_max_tokens = true;
  return request;
}

}  // namespace

StatusOr<OllamaRequest> ollama_request_from_json(OllamaRoute route, json::object& body,
                                                 bool takes_tools) {
  StatusOr<OllamaRequest> request =
      read_request(route, body, takes_tools && route == OllamaRoute::kChat);
  if (!request.ok()) return as_ollama_error(request.status());
  return request;
}

Status as_ollama_error(const Status& status) {
  const auto renamed = [&](const Renamed& name) {
    std::string message = status.message();
    if (message.starts_with(name.chat)) message.replace(0, name.chat.size(), name.ollama);
    return Status(status.code(), std::move(message)).with_field(name.ollama);
  };
  for (const Renamed& name : kOptions) {
    if (status.field() == name.chat) return renamed(name);
  }
  for (const Renamed& name : kFields) {
    if (status.field() == name.chat) return renamed(name);
  }
  return status;
}

}  // namespace gapless
