// Ollama's API: /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version, /api/pull.
//
// Answers are streams of JSON lines unless "stream" is false, durations nanoseconds, errors
// {"error": "message"}. What cannot be done with one model that is always loaded (create, copy, push,
// delete, embeddings) is not there.
#pragma once

#include "server/router.h"
#include "server/server_state.h"

namespace gapless {

// `state` outlives the router.
void add_ollama_routes(Router& router, ServerState& state);

}  // namespace gapless
