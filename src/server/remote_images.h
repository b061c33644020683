// Pictures that a request names by http(s) address, fetched before its handler sees it.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <memory>

#include "server/exchange.h"
#include "server/server_state.h"

namespace gapless {

// Where an API has its pictures: in "image_url", a string or an object with "url".
enum class ImagePlace {
  kTop,       // of the body
  kMessages,  // of the parts of type "image_url" of a message's content
};

// Calls `then` with the body, in which a data: URI has taken the place of every http(s) address at
// `place`, so that all behind is as if the client had sent the picture. Addresses elsewhere are left
// alone. At once, on this thread, when there is none or fetching is off (such addresses are then
// refused as always); later, on the fetcher's thread, otherwise. When a picture cannot be had,
// answers the exchange, and `then` is not called.
//
// Nothing is fetched for a request that would be refused anyway: `check` judges the body with a
// stand-in for each picture, and all addresses are judged (UrlFetcher::check) before the first one
// is fetched.
void with_remote_images(ServerState& state, const std::shared_ptr<Exchange>& exchange,
                        boost::json::object body, ImagePlace place,
                        const std::function<Status(boost::json::object body)>& check,
                        std::function<void(boost::json::object body)> then);

}  // namespace gapless
