// For people and machines that run the server: /health, /ready, /metrics, /version.
#pragma once

#include "server/router.h"
#include "server/server_state.h"

namespace gapless {

// `state` outlives the router.
void add_operations_routes(Router& router, ServerState& state);

}  // namespace gapless
