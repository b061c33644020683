// The door of the server: every request's head is judged here, then it goes to its handler.
#pragma once

#include "server/http_server.h"
#include "server/server_state.h"

namespace gapless {

// Judged from the head alone, in this order; a request that is refused gets no memory for a body:
//
//   Host     403 unless it is a name of this server (HostPolicy), so that no page can make its own
//            name lead here
//   Origin   403 for pages of other origins that are not in cors_origins: no page on the web may
//            use a server on its visitor's machine unless it was let in; for the paths under
//            /debug/ not even those
//   key      401 without a valid one. Preflights, /health, /ready and the playground's files need
//            none, as long as they have no body
//
// `state` outlives the handlers.
HttpHandlers make_api_handler(ServerState& state);

}  // namespace gapless
