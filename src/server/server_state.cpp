#include "server/server_state.h"

#include "server/http_message.h"
#include "server/unix_time.h"

namespace gapless {

ServerState::ServerState(ServerStateOptions options)
    : options_(std::move(options)),
      keys_(options_.api_keys),
      hosts_(options_.allowed_hosts),
      started_unix_s_(whole_unix_now_s()) {}

}  // namespace gapless
