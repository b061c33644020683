// Pictures that a request names by http(s) address, fetched before its handler sees it.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <memory>

#include "server/exchange.h"
#include "server/server_state.h"

namespace gapless {

// Calls `then` with the body, in which a data: URI has taken the place of every http(s) address in
// an "image_url" (a string, or an object with "url"), so that all behind is as if the client had
// sent the picture. At once, on this thread, when there is none or fetching is off (such addresses
// are then refused as always); later, on the fetcher's thread, otherwise. When a picture cannot be
// had, answers the exchange, and `then` is not called.
void with_remote_images(ServerState& state, const std::shared_ptr<Exchange>& exchange,
                        boost::json::object body,
                        std::function<void(boost::json::object body)> then);

}  // namespace gapless
