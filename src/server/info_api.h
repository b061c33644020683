// What routers of SGLang's family ask a worker when they meet it: /server_info and /model_info, once
// /get_server_info and /get_model_info.
#pragma once

#include "server/router.h"
#include "server/server_state.h"

namespace gapless {

// `state` outlives the router.
void add_info_routes(Router& router, ServerState& state);

}  // namespace gapless
