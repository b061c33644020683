// Which names clients may call the server by.
//
// A page on the web can point a name of its own at a visitor's loopback address (DNS rebinding):
// for the browser it then talks to its own server, and Origin equals Host. What gives it away is
// the name. So a request is answered only if its Host is a name of this server.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gapless {

// The host of "name", "name:port", "[address]:port": lower case, without the port and one trailing
// dot, addresses in their shortest spelling without brackets. Empty: not a host.
std::string host_of_authority(std::string_view authority);

// True for addresses of this machine alone: 127.0.0.0/8, ::1, and these in IPv6 disguise. False for
// names.
bool is_loopback_address(std::string_view address);

class HostPolicy {
 public:
  HostPolicy() = default;
  // "*" allows every name. An entry may have a port, which is ignored.
  explicit HostPolicy(const std::vector<std::string>& allowed);

  // Allowed are localhost, loopback addresses, the address that the client has connected to, and
  // the names given. `authority`: the Host header. Ports are not compared: a proxy or a container
  // may listen on another one.
  bool allows(std::string_view authority, std::string_view local_address) const;

 private:
  bool any_ = false;
  std::vector<std::string> hosts_;
};

}  // namespace gapless
