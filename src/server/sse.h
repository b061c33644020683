// JSON and server-sent events as the clients read them.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace gapless {

// JSON in ASCII: every other character is written as \uXXXX (pairs of them above U+FFFF), so that a
// client that decodes each network read by itself never sees half a character. `text`: JSON as
// Boost.JSON serialises it; what is not UTF-8 becomes U+FFFD.
std::string ascii_json(std::string_view text);

// "data: {...}\n\n": one event, on one line, in ASCII.
std::string sse_event(const boost::json::value& value);

// The event that ends an OpenAI stream.
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace gapless
