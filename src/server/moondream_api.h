// Moondream's API: POST /v1/query, caption, point, detect and segment, and the same without /v1.
#pragma once

#include "server/router.h"
#include "server/server_state.h"

namespace gapless {

// `state` outlives the router.
void add_moondream_routes(Router& router, ServerState& state);

}  // namespace gapless
