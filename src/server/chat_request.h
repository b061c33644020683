// The body of POST /v1/chat/completions as a skill request.
//
// A text model reads the messages by its chat template (text/chat_template.h), where
// "chat_template_kwargs": {"enable_thinking": false} may tell Qwen3 to answer at once. Moondream has no chat
// template: the last user turn is the question, system text goes in front of
// it, and earlier turns go in front as "User: ..." and "Assistant: ..." lines. The images of all
// turns come before the text, in order. The extension field "moondream": {"skill", "object",
// "objects", "length", "spatial_refs", "reasoning", "confidence", "settings"} reaches the other skills.
#pragma once

#include <boost/json/object.hpp>

#include "base/status.h"
#include "skill/skill_request.h"

namespace gapless {

struct ChatRequest {
  // What the answer looks like: a message, or the text of /v1/completions (completion_request.h).
  enum class Form { kChat, kCompletion };
  Form form = Form::kChat;
  SkillRequest skill;
  int num_choices = 1;  // n, or one for each object of `skill`
  bool stream = false;
  bool include_usage = false;
  // By which name the request has limited its answer: "max_completion_tokens" or "max_tokens".
  std::string_view limit_field = "max_tokens";
};

// What would change the answer and cannot be done is an error that names the field
// (skill/unsupported_fields.h); other unknown fields are ignored. Frees the text of the images in
// `body`, which they are decoded from.
// `takes_tools`: of the model. Without it "tools" and "tool_choice" are refused, and so are messages of tools.
StatusOr<ChatRequest> chat_request_from_json(boost::json::object& body, bool takes_tools = false);

// The same error, its field under the name that it has in a request of this form: questions and pictures
// lie in "messages", or in "prompt"; max_tokens may have been given as `limit_field`.
Status as_chat_error(const Status& status, ChatRequest::Form form = ChatRequest::Form::kChat,
                     std::string_view limit_field = "max_tokens");

}  // namespace gapless
