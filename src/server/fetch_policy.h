// Which pictures the server may fetch: the rules alone, without a network.
//
// A server that fetches what its clients name can be turned against the network that it stands in
// (SSRF). So: nothing is fetched unless hosts are allowed by name; https and http only; and every
// address that a name leads to must be public, whatever the name, the redirect or the resolver
// says.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.h"
#include "base/status.h"

namespace gapless {

// True for addresses of the public internet: not loopback, private, link-local, shared (CGNAT),
// multicast, reserved or documentation; of IPv6 only global unicast, and neither an IPv4 address in
// disguise (mapped, 6to4, Teredo, NAT64) nor one of these. False for what is not an address.
bool is_public_address(std::string_view address);

struct FetchPolicy {
  // "example.org" is that host; ".example.org" every host below it; "*" every host. Empty: fetching
  // is off.
  std::vector<std::string> allowed_hosts;
  std::size_t max_bytes = kMaxFetchBytes;
  std::chrono::milliseconds timeout{kFetchSeconds * 1000};  // all redirects together
  int max_redirects = kMaxFetchRedirects;
  // Of the address that is connected to. Tests, whose servers are on loopback, bring their own.
  std::function<bool(std::string_view address)> allows_address = is_public_address;
  // Whether names that do not exist are told apart from slow ones only when the timeout is over: who
  // asks a server must not learn the names of its network.
  bool hide_names = true;
  // Certificates to trust instead of the system's: a PEM file. For tests and private authorities.
  std::string ca_file;

  bool allows_host(std::string_view host) const;
};

}  // namespace gapless
