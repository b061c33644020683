#include "server/host_policy.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <optional>

namespace gapless {
namespace {

namespace ip = boost::asio::ip;

// IPv4 in IPv6 disguise (::ffff:a.b.c.d, as sockets for both show it) counts as IPv4.
std::optional<ip::address> address_of(std::string_view text) {
  boost::system::error_code error;
  const ip::address address = ip::make_address(std::string(text), error);
  if (error) return std::nullopt;
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return ip::make_address_v4(ip::v4_mapped, address.to_v6());
  }
  return address;
}

bool is_port(std::string_view text) {
  return text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

}  // namespace

std::string host_of_authority(std::string_view authority) {
  const bool bracketed = authority.starts_with('[');
  const std::size_t end = bracketed ? authority.find(']') : authority.find(':');
  if (bracketed && end == std::string_view::npos) return {};
  std::string_view rest = end == std::string_view::npos ? "" : authority.substr(end);
  if (bracketed) rest.remove_prefix(1);
  if (!rest.empty() && (rest[0] != ':' || !is_port(rest.substr(1)))) return {};

  std::string host(bracketed ? authority.substr(1, end - 1) : authority.substr(0, end));
  for (char& c : host) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (host.ends_with('.')) host.pop_back();
  const std::optional<ip::address> address = address_of(host);
  if (bracketed) return address ? address->to_string() : "";
  if (address) return address->to_string();
  return std::all_of(host.begin(), host.end(), is_name_character) ? host : "";
}

bool is_loopback_address(std::string_view address) {
  const std::optional<ip::address> parsed = address_of(address);
  return parsed && parsed->is_loopback();
}

HostPolicy::HostPolicy(const std::vector<std::string>& allowed) {
  for (const std::string& entry : allowed) {
    if (entry == "*") any_ = true;
    hosts_.push_back(host_of_authority(entry));
  }
}

bool HostPolicy::allows(std::string_view authority, std::string_view local_address) const {
  const std::string host = host_of_authority(authority);
  if (host.empty()) return false;
  if (any_ || host == "localhost" || is_loopback_address(host)) return true;
  const std::optional<ip::address> local = address_of(local_address);
  if (local && host == local->to_string()) return true;
  return std::find(hosts_.begin(), hosts_.end(), host) != hosts_.end();
}

}  // namespace gapless
