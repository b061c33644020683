#include "server/server_state.h"

#include <algorithm>
#include <array>
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

bool ServerState::knows_model(const ServiceInfo& info, std::string_view name) {
  // What clients and examples for Moondream's servers send, whichever model runs there.
  constexpr std::array<std::string_view, 8> kFamilyNames = {
      "moondream",           "moondream2",
      "moondream-2",         "moondream-2B",
      "vikhyatk/moondream2", "moondream3-preview",
      "moondream-3-preview", "moondream/moondream3-preview"};
  return name == info.model ||
         std::find(kFamilyNames.begin(), kFamilyNames.end(), name) != kFamilyNames.end();
}

}  // namespace gapless
