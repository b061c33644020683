#include "server/fetch_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>

namespace gapless {
namespace {

namespace ip = boost::asio::ip;

// RFC 6890 and its registry: everything that is not globally reachable.
constexpr struct {
  std::uint32_t network;
  int bits;
} kSpecialV4[] = {
    {0x00000000, 8},   // this network
    {0x0A000000, 8},   // private
    {0x64400000, 10},  // shared: carriers' NAT
    {0x7F000000, 8},   // loopback
    {0xA9FE0000, 16},  // link-local: clouds' metadata services
    {0xAC100000, 12},  // private
    {0xC0000000, 24},  // protocol assignments
    {0xC0000200, 24},  // documentation
    {0xC0586300, 24},  // 6to4 relays
    {0xC0A80000, 16},  // private
    {0xC6120000, 15},  // benchmarking
    {0xC6336400, 24},  // documentation
    {0xCB007100, 24},  // documentation
    {0xE0000000, 4},   // multicast
    {0xF0000000, 4},   // reserved, broadcast
};

bool is_public_v4(std::uint32_t address) {
  return std::none_of(std::begin(kSpecialV4), std::end(kSpecialV4), [address](const auto& special) {
    return (address ^ special.network) >> (32 - special.bits) == 0;
  });
}

bool is_public_v6(const ip::address_v6& address) {
  const ip::address_v6::bytes_type bytes = address.to_bytes();
  const auto word = [&bytes](std::size_t i) { return bytes[2 * i] << 8 | bytes[2 * i + 1]; };
  // Global unicast is 2000::/3: mapped addresses, NAT64 (64:ff9b::), local and multicast ones are
  // outside of it.
  if (word(0) >> 13 != 1) return false;
  if (word(0) == 0x2001 && word(1) < 0x200) return false;   // protocols, Teredo
  if (word(0) == 0x2001 && word(1) == 0xDB8) return false;  // documentation
  if (word(0) == 0x2002) return false;                      // 6to4: an IPv4 address in disguise
  return word(0) >> 4 != 0x3FFF >> 4;                       // documentation
}

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

bool is_public_address(std::string_view text) {
  boost::system::error_code error;
  const ip::address address = ip::make_address(std::string(text), error);
  if (error) return false;
  return address.is_v4() ? is_public_v4(address.to_v4().to_uint()) : is_public_v6(address.to_v6());
}

bool FetchPolicy::allows_host(std::string_view host) const {
  return std::any_of(allowed_hosts.begin(), allowed_hosts.end(), [host](const std::string& entry) {
    const std::string allowed = lower_case(entry);
    if (allowed == "*" || allowed == host) return true;
    return allowed.starts_with('.') && host.size() > allowed.size() && host.ends_with(allowed);
  });
}

std::string FetchUrl::host_header() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (tls ? "443" : "80") ? name : name + ":" + port;
}

bool is_fetchable_url(std::string_view url) {
  const std::string scheme = lower_case(url.substr(0, url.find(':')));
  return url.find(':') != std::string_view::npos && (scheme == "http" || scheme == "https");
}

StatusOr<FetchUrl> parse_fetch_url(std::string_view url) {
  if (url.size() > kMaxFetchUrlBytes) return bad_url("is too long");
  for (const char c : url) {
    // With these a URL could end its request line and begin another.
    if (c <= ' ' || c >= 0x7F || c == '\\') return bad_url("has a character that must be encoded");
  }
  const std::size_t scheme_end = url.find("://");
  if (!is_fetchable_url(url) || scheme_end == std::string_view::npos) {
    return bad_url("is neither http nor https");
  }
  FetchUrl parsed;
  parsed.tls = lower_case(url.substr(0, scheme_end)) == "https";
  std::string_view rest = url.substr(scheme_end + 3);
  rest = rest.substr(0, rest.find('#'));
  const std::size_t authority_end = rest.find_first_of("/?");
  std::string_view authority = rest.substr(0, authority_end);
  if (authority_end != std::string_view::npos) parsed.target = rest.substr(authority_end);
  if (!parsed.target.starts_with('/')) parsed.target.insert(0, "/");
  if (authority.find('@') != std::string_view::npos) return bad_url("has a user name in it");

  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) return bad_url("has no whole host");
    parsed.host = lower_case(authority.substr(1, close - 1));
    boost::system::error_code error;
    ip::make_address_v6(parsed.host, error);
    if (error) return bad_url("has no whole host");
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

StatusOr<FetchUrl> resolve_redirect(const FetchUrl& base, std::string_view location) {
  const std::string scheme = base.tls ? "https:" : "http:";
  const std::string authority = scheme + "//" + base.host_header();
  if (location.starts_with("//")) return parse_fetch_url(scheme + std::string(location));
  if (location.starts_with('/')) return parse_fetch_url(authority + std::string(location));
  const std::size_t colon = location.find(':');
  if (colon != std::string_view::npos && colon < location.find_first_of("/?#")) {
    return parse_fetch_url(location);
  }
  const std::string_view path = std::string_view(base.target).substr(0, base.target.find('?'));
  return parse_fetch_url(
      fmt::format("{}{}{}", authority, path.substr(0, path.rfind('/') + 1), location));
}

}  // namespace gapless
