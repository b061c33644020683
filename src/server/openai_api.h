// OpenAI's API: /v1/models, /v1/chat/completions, /v1/completions; /tokenize and /detokenize as vLLM has them.
#pragma once

#include "server/router.h"
#include "server/server_state.h"

namespace gapless {

// `state` outlives the router.
void add_openai_routes(Router& router, ServerState& state);

}  // namespace gapless
