// For people who watch the device: the timeline of its last steps, the trace, the depth switch.
#pragma once

#include "server/router.h"
#include "server/server_state.h"

namespace gapless {

// GET /debug/timeline, GET /debug/trace, POST /debug/depth. 404 unless ServerStateOptions::debug.
void add_debug_routes(Router& router, ServerState& state);

}  // namespace gapless
