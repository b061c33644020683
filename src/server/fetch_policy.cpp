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

}  // namespace gapless
