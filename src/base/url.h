// Addresses of the web as this project takes them: http and https, no user names. Pure text, no network.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

struct Url {
  bool tls = false;
  std::string host;    // lower case; of an IPv6 literal without its brackets
  std::string port;    // "443"
  std::string target;  // path and query, at least "/"
  std::string host_header() const;
};

// InvalidArgument: longer than kMaxFetchUrlBytes, not http or https, a user name, no host,
// characters that a URL cannot have.
StatusOr<Url> parse_url(std::string_view url);

// Where a Location header leads from `base`: absolute, "//host/path", "/path" or relative.
StatusOr<Url> resolve_redirect(const Url& base, std::string_view location);

bool is_web_url(std::string_view url);  // begins with http: or https:

}  // namespace gapless
