// The body of POST /v1/chat/completions as a skill request.
//
// Moondream has no chat template: the last user turn is the question, system text goes in front of
// it, and earlier turns go in front as "User: ..." and "Assistant: ..." lines. The images of all
// turns come before the text, in order. The extension field "moondream": {"skill", "object",
// "length", "spatial_refs", "settings"} reaches the other skills.
#pragma once

#include <boost/json/object.hpp>

#include "base/status.h"
#include "skill/skill_request.h"

namespace gapless {

struct ChatRequest {
  SkillRequest skill;
  int num_choices = 1;  // n; choice i takes seed + i
  bool stream = false;
  bool include_usage = false;
};

// What is known and cannot be done is an error that names the field (tools, response_format other
// than text, penalties); unknown fields are ignored. Frees the text of the images in `body`, which
// they are decoded from.
StatusOr<ChatRequest> chat_request_from_json(boost::json::object& body);

}  // namespace gapless
