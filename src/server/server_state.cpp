#include "server/server_state.h"

#include <chrono>

#include "server/http_message.h"

namespace gapless {

ServerState::ServerState(ServerStateOptions options)
    : options_(std::move(options)),
      keys_(options_.api_keys),
      hosts_(options_.allowed_hosts),
      started_unix_s_(std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count()) {}

}  // namespace gapless
