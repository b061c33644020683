// The door of the server: every request passes here, then goes to its handler.
#pragma once

#include <functional>
#include <memory>

#include "server/exchange.h"
#include "server/server_state.h"

namespace gapless {

using RequestHandler = std::function<void(const std::shared_ptr<Exchange>&)>;

// Checks, in this order: where a browser's page comes from (Origin), preflights, the API key, the
// route. A request with an Origin that is neither our own nor in cors_origins is refused with 403:
// no page on the web may use a server on its visitor's machine unless it was let in. /health,
// /ready and the playground's files need no key.
RequestHandler make_api_handler(ServerState& state);

}  // namespace gapless
