#include "base/url.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/limits.h"

namespace gapless {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool is_host_name(std::string_view host) {
  return !host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
}

Status bad_url(std::string_view why) {
  return invalid_argument("the address {}", why);
}

}  // namespace

std::string Url::host_header() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (tls ? "443" : "80") ? name : name + ":" + port;
}

bool is_web_url(std::string_view url) {
  const std::string scheme = lower_case(url.substr(0, url.find(':')));
  return url.find(':') != std::string_view::npos && (scheme == "http" || scheme == "https");
}

StatusOr<Url> parse_url(std::string_view url) {
  if (url.size() > kMaxFetchUrlBytes) return bad_url("is too long");
  for (const char c : url) {
    // With these a URL could end its request line and begin another.
    if (c <= ' ' || c >= 0x7F || c == '\\') return bad_url("has a character that must be encoded");
  }
  const std::size_t scheme_end = url.find("://");
  if (!is_web_url(url) || scheme_end == std::string_view::npos) {
    return bad_url("is neither http nor https");
  }
  Url parsed;
  parsed.tls = lower_case(url.substr(0, scheme_end)) == "https";
  std::string_view rest = url.substr(scheme_end + 3);
  rest = rest.substr(0, rest.find('#'));
  const std::size_t authority_end = rest.find_first_of("/?");
  std::string_view authority = rest.substr(0, authority_end);
  if (authority_end != std::string_view::npos) parsed.target = rest.substr(authority_end);
  if (!parsed.target.starts_with('/')) parsed.target.insert(parsed.target.begin(), '/');
  if (authority.find('@') != std::string_view::npos) return bad_url("has a user name in it");

  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) return bad_url("has no whole host");
    parsed.host = lower_case(authority.substr(1, close - 1));
    in6_addr address;
    if (::inet_pton(AF_INET6, parsed.host.c_str(), &address) != 1) {
      return bad_url("has no whole host");
    }
    port = authority.substr(close + 1);
    if (!port.empty() && port[0] != ':') return bad_url("has no whole host");
  } else {
    const std::size_t colon = authority.find(':');
    parsed.host = lower_case(authority.substr(0, colon));
    if (!is_host_name(parsed.host)) return bad_url("has no whole host");
    if (colon != std::string_view::npos) port = authority.substr(colon);
  }
  if (!port.empty()) port.remove_prefix(1);
  const bool digits =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || port.size() > 5) return bad_url("has a port that is none");
  parsed.port = port.empty() ? (parsed.tls ? "443" : "80") : std::string(port);
  return parsed;
}

StatusOr<Url> resolve_redirect(const Url& base, std::string_view location) {
  const std::string scheme = base.tls ? "https:" : "http:";
  const std::string authority = scheme + "//" + base.host_header();
  if (location.starts_with("//")) return parse_url(scheme + std::string(location));
  if (location.starts_with('/')) return parse_url(authority + std::string(location));
  const std::size_t colon = location.find(':');
  if (colon != std::string_view::npos && colon < location.find_first_of("/?#")) {
    return parse_url(location);
  }
  const std::string_view path = std::string_view(base.target).substr(0, base.target.find('?'));
  return parse_url(fmt::format("{}{}{}", authority, path.substr(0, path.rfind('/') + 1), location));
}

}  // namespace gapless
