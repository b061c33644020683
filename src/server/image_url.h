// The `image_url` of both APIs: where the bytes of a picture are.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

// The picture's encoded bytes from "data:[type][;base64],DATA" (any media type: the format is told
// from the bytes) or from raw base64. http(s) and file URLs are refused here: what may be fetched
// (remote_images.h) is a data: URI by now.
StatusOr<std::string> image_bytes_from_url(std::string_view url);

// The same from a string of a parsed body, whose text is freed, so that a picture is not held twice.
StatusOr<std::string> take_image_bytes(boost::json::value& url);

}  // namespace gapless
