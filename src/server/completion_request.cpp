#include "server/completion_request.h"

#include <boost/json/array.hpp>

#include "base/limits.h"
#include "server/json_body.h"

namespace gapless {
namespace {

namespace json = boost::json;

// OpenAI's default for this route.
constexpr int kDefaultCompletionTokens = 16;

StatusOr<json::string> take_prompt(json::object& body) {
  json::value* prompt = body.if_contains("prompt");
  if (prompt != nullptr && prompt->is_array() && prompt->get_array().size() == 1) {
    prompt = &prompt->get_array().front();
  }
  if (prompt == nullptr || !prompt->is_string()) {
    return invalid_field("prompt", "must be a string, or a list of one");
  }
  return std::move(prompt->get_string());
}

// This API's "logprobs" is the number of alternatives; in a chat's fields they are two.
Status rewrite_logprobs(json::object& body) {
  if (find_field(body, "top_logprobs") != nullptr) {
    return invalid_field("top_logprobs", "is a field of a chat; here logprobs is the number");
  }
  const json::value* given = find_field(body, "logprobs");
  if (given == nullptr) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(const auto number, optional_integer(body, "logprobs"));
  if (*number < 0 || *number > kMaxTopLogprobs) {
    return invalid_field("logprobs", "must lie between 0 and {}", kMaxTopLogprobs);
  }
  body["logprobs"] = true;
  body["top_logprobs"] = *number;
  return ok_status();
}

}  // namespace

StatusOr<ChatRequest> completion_request_from_json(json::object& body) {
  GAPLESS_RETURN_IF_ERROR(rewrite_logprobs(body));
  GAPLESS_ASSIGN_OR_RETURN(json::string prompt, take_prompt(body));
  body["messages"] = json::array{json::object{{"role", "user"}, {"content", std::move(prompt)}}};
  if (find_field(body, "max_tokens") == nullptr) body["max_tokens"] = kDefaultCompletionTokens;
  StatusOr<ChatRequest> request = chat_request_from_json(body);
  if (!request.ok()) {
    const bool of_prompt = request.status().field() == "messages";
    return Status(request.status().code(), request.status().message())
        .with_field(of_prompt ? "prompt" : request.status().field());
  }
  request->form = ChatRequest::Form::kCompletion;
  request->skill.form = QueryForm::kCompletion;
  request->skill.messages.clear();
  return request;
}

}  // namespace gapless
