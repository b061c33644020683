#include "server/chat_request.h"

#include <boost/json/array.hpp>
#include <string>
#include <vector>

#include "base/limits.h"
#include "server/image_url.h"
#include "server/json_body.h"
#include "server/tool_fields.h"
#include "skill/grammar_fields.h"
#include "skill/request_json.h"
#include "skill/unsupported_fields.h"

namespace gapless {
namespace {

namespace json = boost::json;

struct Conversation {
  std::string system;
  std::vector<ChatMessage> turns;     // without the system's
  std::vector<ChatMessage> messages;  // all
  std::vector<std::shared_ptr<const std::string>> images;
  bool takes_tools = false;  // messages may have calls and their answers
};

void append_paragraph(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty()) text += "\n";
  text += more;
}

// Frees the part's text.
StatusOr<std::string> take_bytes_of_image_part(json::object& part) {
  json::value* url = part.if_contains("image_url");
  if (url != nullptr && url->is_object()) url = url->get_object().if_contains("url");
  if (url == nullptr || !url->is_string()) {
    return invalid_argument("image_url must be a string or an object with a string 'url'");
  }
  return take_image_bytes(*url);
}

Status read_image_part(json::object& part, Conversation& conversation) {
  const std::size_t num_images = conversation.images.size();
  if (num_images == kMaxImagesPerPrompt) {
    return invalid_argument("messages: at most {} images are allowed", kMaxImagesPerPrompt);
  }
  StatusOr<std::string> bytes = take_bytes_of_image_part(part);
  if (!bytes.ok()) {
    return bytes.status().with_context(fmt::format("messages: image {}", num_images + 1));
  }
  conversation.images.push_back(std::make_shared<const std::string>(std::move(bytes).value()));
  return ok_status();
}

// `text` gets the message's text, the conversation its images.
Status read_content(json::object& message, bool may_have_image, Conversation& conversation,
                    std::string& text) {
  if (find_field(message, "content") == nullptr) return ok_status();
  json::value* const content = message.if_contains("content");
  if (content->is_string()) {
    text = std::string(content->get_string());
    return ok_status();
  }
  if (!content->is_array()) {
    return invalid_argument("messages: content must be a string or a list of parts");
  }
  for (json::value& part : content->get_array()) {
    if (!part.is_object()) return invalid_argument("messages: a part must be an object");
    json::object& fields = part.get_object();
    GAPLESS_ASSIGN_OR_RETURN(const auto type, optional_string(fields, "type"));
    if (type == "text") {
      GAPLESS_ASSIGN_OR_RETURN(const auto piece, optional_string(fields, "text"));
      append_paragraph(text, piece.value_or(""));
    } else if (type == "image_url" && may_have_image) {
      GAPLESS_RETURN_IF_ERROR(read_image_part(fields, conversation));
    } else {
      return invalid_argument("messages: a part of type '{}' cannot be taken here",
                              type.value_or(""));
    }
  }
  return ok_status();
}

Status read_message(json::value& value, Conversation& conversation) {
  if (!value.is_object()) return invalid_argument("messages: a message must be an object");
  json::object& message = value.get_object();
  GAPLESS_ASSIGN_OR_RETURN(const auto role, optional_string(message, "role"));
  std::string text;
  GAPLESS_RETURN_IF_ERROR(read_content(message, role == "user", conversation, text));
  if (role == "tool" && conversation.takes_tools) {
    conversation.turns.push_back({ChatRole::kTool, std::move(text)});
    conversation.messages.push_back(conversation.turns.back());
  } else if (role == "system" || role == "developer") {
    append_paragraph(conversation.system, text);
    conversation.messages.push_back({ChatRole::kSystem, std::move(text)});
  } else if (role == "user" || role == "assistant") {
    conversation.turns.push_back(
        {role == "user" ? ChatRole::kUser : ChatRole::kAssistant, std::move(text)});
    if (role == "assistant" && conversation.takes_tools) {
      GAPLESS_ASSIGN_OR_RETURN(conversation.turns.back().tool_calls, read_tool_calls(message));
    }
    conversation.messages.push_back(conversation.turns.back());
  } else {
    return invalid_argument("messages: role '{}' is not known", role.value_or(""));
  }
  return ok_status();
}

StatusOr<Conversation> read_messages(json::object& body, bool takes_tools) {
  json::value* const messages = body.if_contains("messages");
  if (messages == nullptr || !messages->is_array() || messages->get_array().empty()) {
    return invalid_argument("messages must be a list that is not empty");
  }
  if (messages->get_array().size() > kMaxChatMessages) {
    return invalid_argument("messages: at most {} are allowed", kMaxChatMessages);
  }
  Conversation conversation;
  conversation.takes_tools = takes_tools;
  for (json::value& message : messages->get_array()) {
    GAPLESS_RETURN_IF_ERROR(read_message(message, conversation));
  }
  if (conversation.turns.empty() || conversation.turns.back().role == ChatRole::kAssistant) {
    return invalid_argument("messages: the last one must be the user's{}",
                            takes_tools ? " or a tool's" : "");
  }
  return conversation;
}

std::string question_of(const Conversation& conversation) {
  std::string text = conversation.system;
  const std::size_t last = conversation.turns.size() - 1;
  for (std::size_t i = 0; i < last; ++i) {
    const ChatMessage& turn = conversation.turns[i];
    append_paragraph(text, (turn.role == ChatRole::kUser ? "User: " : "Assistant: ") + turn.text);
  }
  append_paragraph(text, conversation.turns[last].text);
  return text;
}

// The limit by which an answer is held; without one either name will do.
std::string_view limit_field_of(const json::object& body) {
  return find_field(body, "max_completion_tokens") != nullptr ? "max_completion_tokens"
                                                              : "max_tokens";
}

// The object that skill_request_from_json reads: sampling fields of the chat request, then those of
// the extension.
StatusOr<json::object> skill_fields(const json::object& body, const json::object* extension) {
  json::object fields;
  for (const char* name :
       {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "max_tokens",
        "min_tokens", "ignore_eos", "complete", "reasoning"}) {
    if (const json::value* value = find_field(body, name)) fields[name] = *value;
  }
  if (const json::value* limit = find_field(body, limit_field_of(body))) {
    fields["max_tokens"] = *limit;
  }
  if (extension != nullptr) {
    for (const char* name : {"object", "obj", "objects", "length", "spatial_refs", "complete",
                             "settings", "reasoning", "confidence"}) {
      if (const json::value* value = find_field(*extension, name)) fields[name] = *value;
    }
  }
  for (const std::string_view name : kGrammarFields) {
    if (const json::value* value = find_field(body, name)) fields[name] = *value;
    const json::value* value = extension == nullptr ? nullptr : find_field(*extension, name);
    if (value == nullptr) continue;
    if (fields.contains(name)) return invalid_field(name, "is there twice");
    fields[name] = *value;
  }
  return fields;
}

Status read_stream_options(const json::object& body, ChatRequest& request) {
  GAPLESS_ASSIGN_OR_RETURN(request.stream, bool_or(body, "stream", false));
  const json::value* options = find_field(body, "stream_options");
  if (options == nullptr) return ok_status();
  if (!options->is_object()) return invalid_field("stream_options", "must be an object");
  GAPLESS_ASSIGN_OR_RETURN(request.include_usage,
                           bool_or(options->get_object(), "include_usage", false));
  return ok_status();
}

Status read_logprobs(const json::object& body, GenerationSettings& settings) {
  GAPLESS_ASSIGN_OR_RETURN(settings.logprobs, bool_or(body, "logprobs", false));
  GAPLESS_ASSIGN_OR_RETURN(const auto top, optional_integer(body, "top_logprobs"));
  if (!top) return ok_status();
  if (!settings.logprobs) return invalid_field("top_logprobs", "needs logprobs to be true");
  if (*top < 0 || *top > kMaxTopLogprobs) {
    return invalid_field("top_logprobs", "must lie between 0 and {}", kMaxTopLogprobs);
  }
  settings.top_logprobs = static_cast<std::int32_t>(*top);
  return ok_status();
}

// {"enable_thinking": ...} and nothing else is taken out of the body; other templates' settings are refused
// as all that is not supported.
StatusOr<std::optional<bool>> take_thinking(json::object& body) {
  constexpr std::string_view kField = "chat_template_kwargs", kThinking = "enable_thinking";
  const json::value* kwargs = find_field(body, kField);
  if (kwargs == nullptr || !kwargs->is_object()) return std::optional<bool>();
  const json::object& fields = kwargs->get_object();
  const json::value* thinking = fields.if_contains(kThinking);
  if (thinking == nullptr || fields.size() != 1) return std::optional<bool>();
  if (!thinking->is_bool()) return invalid_field(kField, "{} must be true or false", kThinking);
  const bool value = thinking->get_bool();
  body.erase(kField);
  return std::optional<bool>(value);
}

StatusOr<ChatRequest> read_request(json::object& body, bool takes_tools) {
  ChatRequest request;
  std::optional<ToolUse> tools;
  if (takes_tools) {
    GAPLESS_ASSIGN_OR_RETURN(tools, take_tools(body));
  }
  request.limit_field = limit_field_of(body);
  GAPLESS_ASSIGN_OR_RETURN(const std::optional<bool> thinking, take_thinking(body));
  GAPLESS_RETURN_IF_ERROR(refuse_unsupported(body));
  GAPLESS_RETURN_IF_ERROR(read_stream_options(body, request));
  GAPLESS_ASSIGN_OR_RETURN(const auto n, optional_integer(body, "n"));
  if (n.value_or(1) < 1 || n.value_or(1) > kMaxChoices) {
    return invalid_field("n", "must lie between 1 and {}", kMaxChoices);
  }
  request.num_choices = static_cast<int>(n.value_or(1));

  const json::value* extension = find_field(body, "moondream");
  if (extension != nullptr && !extension->is_object()) {
    return invalid_field("moondream", "must be an object");
  }
  const json::object* fields_of_skill = extension == nullptr ? nullptr : &extension->get_object();
  Skill skill = Skill::kQuery;
  if (fields_of_skill != nullptr) {
    GAPLESS_RETURN_IF_ERROR(refuse_unsupported(*fields_of_skill));
    GAPLESS_ASSIGN_OR_RETURN(const auto name, optional_string(*fields_of_skill, "skill"));
    GAPLESS_ASSIGN_OR_RETURN(skill, skill_from_name(name.value_or("query")));
  }

  StatusOr<Conversation> read = read_messages(body, takes_tools);
  // Whatever of a message is at fault.
  if (!read.ok()) {
    return Status(read.status().code(), read.status().message()).with_field("messages");
  }
  Conversation conversation = std::move(read).value();
  GAPLESS_ASSIGN_OR_RETURN(json::object fields, skill_fields(body, fields_of_skill));
  if (skill == Skill::kQuery) fields["question"] = question_of(conversation);
  const bool names_object =
      fields.contains("object") || fields.contains("obj") || fields.contains("objects");
  if (!names_object) fields["object"] = conversation.turns.back().text;
  GAPLESS_ASSIGN_OR_RETURN(request.skill, skill_request_from_json(skill, fields));
  if (const std::size_t num_objects = request.skill.objects.size(); num_objects > 0) {
    if (request.num_choices != 1) return invalid_field("n", "cannot be more than 1 with objects");
    request.num_choices = static_cast<int>(num_objects);
  }
  if (tools && tools->must_call && request.skill.settings.grammar) {
    return invalid_field("tool_choice", "asks for a call, and {} for another form of the answer",
                         request.skill.settings.grammar->field);
  }
  request.skill.tools = std::move(tools);
  request.skill.images = std::move(conversation.images);
  request.skill.form = QueryForm::kChat;
  request.skill.messages = std::move(conversation.messages);
  request.skill.thinking = thinking;
  GAPLESS_RETURN_IF_ERROR(read_logprobs(body, request.skill.settings));
  return request;
}

}  // namespace

StatusOr<ChatRequest> chat_request_from_json(json::object& body, bool takes_tools) {
  StatusOr<ChatRequest> request = read_request(body, takes_tools);
  if (!request.ok())
    return as_chat_error(request.status(), ChatRequest::Form::kChat, limit_field_of(body));
  return request;
}

Status as_chat_error(const Status& status, ChatRequest::Form form, std::string_view limit_field) {
  if (status.ok()) return status;
  constexpr std::string_view kLimit = "max_tokens";
  std::string message = status.message();
  std::string_view field = status.field();
  if (field == "question" || field == "image_url") {
    field = form == ChatRequest::Form::kChat ? "messages" : "prompt";
  }
  if (field == kLimit) {
    field = limit_field;
    if (message.starts_with(kLimit)) message.replace(0, kLimit.size(), limit_field);
  }
  return Status(status.code(), std::move(message)).with_field(field);
}

}  // namespace gapless
