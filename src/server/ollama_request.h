// The bodies of Ollama's POST /api/chat and /api/generate as chat requests.
//
// Each is rewritten as the body of /v1/chat/completions that asks for the same thing, and read as one
// (chat_request.h): "images" become parts of their message, "options" fields of the body, "prompt" and
// "system" messages. Errors name Ollama's fields.
#pragma once

#include <boost/json/object.hpp>

#include "base/status.h"
#include "server/chat_request.h"

namespace gapless {

enum class OllamaRoute { kChat, kGenerate };

struct OllamaRequest {
  // Nothing is asked: Ollama's clients send a request without a prompt to have a model loaded.
  bool only_loads = false;
  ChatRequest chat;  // when something is; streams unless it was told not to
};

// What would change the answer and cannot be done is an error, as in chat_request.h; what tells Ollama how
// to load a model ("num_ctx", "num_gpu", "keep_alive", ...) is ignored. Takes the images out of `body`. `takes_tools`: of the
// model; /api/generate has none in any case.
StatusOr<OllamaRequest> ollama_request_from_json(OllamaRoute route, boost::json::object& body,
                                                 bool takes_tools = false);

// The error of a chat request with its field under the name that it has in Ollama's API.
Status as_ollama_error(const Status& status);

}  // namespace gapless
