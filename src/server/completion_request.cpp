#include "server/completion_request.h"

#include <boost/json/array.hpp>

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

}  // namespace

StatusOr<ChatRequest> completion_request_from_json(json::object& body) {
  const json::value* logprobs = find_field(body, "logprobs");
  if (logprobs != nullptr && *logprobs != json::value(false)) {
    return invalid_field("logprobs", "are not given here; /v1/chat/completions has them");
  }
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
