// The body of POST /v1/completions. A text model goes on with the prompt as it is. Otherwise it is a chat
// request of one turn: the prompt is what the user says. (Moondream has no other way to read text; gateways of
// Kubernetes demand the route.)
#pragma once

#include <boost/json/object.hpp>

#include "base/status.h"
#include "server/chat_request.h"

namespace gapless {

// "prompt" is a string, or a list of one; "logprobs" is the number of alternatives. Everything else is as in
// chat_request.h. Changes `body`.
StatusOr<ChatRequest> completion_request_from_json(boost::json::object& body);

}  // namespace gapless
