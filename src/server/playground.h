// Files out of the binary: the playground, at / and under /web/, and the API's description, /openapi.json.
#pragma once

#include "server/router.h"

namespace gapless {

void add_playground_routes(Router& router);

// Files that a browser fetches before anybody could enter a key; they hold nothing of the user's.
bool is_playground_path(std::string_view path);

}  // namespace gapless
