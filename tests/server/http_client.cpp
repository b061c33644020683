#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "server/http_message.h"

namespace gapless {

std::string ClientResponse::header(std::string_view name) const {
  std::size_t at = head.find("\r\n");
  while (at != std::string::npos && at + 4 < head.size()) {
    const std::size_t end = head.find("\r\n", at + 2);
    const std::string line = head.substr(at + 2, end - at - 2);
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos && equals_ignoring_case(line.substr(0, colon), name)) {
      return line.substr(colon + 2);
    }
    at = end;
  }
  return {};
}

std::vector<std::string> ClientResponse::events() const {
  std::vector<std::string> events;
  std::size_t at = 0;
  while (at < body.size()) {
    const std::size_t end = body.find("\n\n", at);
    const std::string event = body.substr(at, end - at);
    const bool well_formed = end != std::string::npos && event.starts_with("data: ") &&
                             event.find('\n') == std::string::npos;
    events.push_back(well_formed ? event.substr(6) : "?" + event);
    if (end == std::string::npos) break;
    at = end + 2;
  }
  return events;
}

HttpClient::HttpClient(std::uint16_t port) : HttpClient(ServerAddress{.port = port}) {}

HttpClient::HttpClient(const ServerAddress& address) {
  const bool local = !address.unix_socket.empty();
  socket_ = ::socket(local ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
  const timeval timeout{10, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  int failed = 0;
  if (local) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    GAPLESS_CHECK(address.unix_socket.size() < sizeof(name.sun_path));
    address.unix_socket.copy(name.sun_path, address.unix_socket.size());
    failed = ::connect(socket_, reinterpret_cast<sockaddr*>(&name), sizeof(name));
  } else {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(address.port);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    failed = ::connect(socket_, reinterpret_cast<sockaddr*>(&name), sizeof(name));
  }
  GAPLESS_CHECK(failed == 0);
}

HttpClient::~HttpClient() {
  if (socket_ >= 0) ::close(socket_);
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

std::size_t HttpClient::send_what_is_taken(std::string_view bytes) {
  std::size_t taken = 0;
  pollfd writable{socket_, POLLOUT, 0};
  while (taken < bytes.size() && ::poll(&writable, 1, 500) > 0) {
    const ssize_t count =
        ::send(socket_, bytes.data() + taken, bytes.size() - taken, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) break;
    taken += static_cast<std::size_t>(count);
  }
  return taken;
}

std::string HttpClient::receive() {
  char bytes[65536];
  const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
  return count <= 0 ? std::string() : std::string(bytes, static_cast<std::size_t>(count));
}

std::string HttpClient::receive_until(std::string_view until) {
  while (buffer_.find(until) == std::string::npos) {
    const std::string more = receive();
    if (more.empty()) break;
    buffer_ += more;
  }
  return buffer_;
}

ClientResponse HttpClient::read_response(bool is_head) {
  ClientResponse response;
  const auto fill = [&] {
    const std::string more = receive();
    buffer_ += more;
    return !more.empty();
  };
  while (true) {
    while (buffer_.find("\r\n\r\n") == std::string::npos) {
      if (!fill()) return response;
    }
    const std::size_t end = buffer_.find("\r\n\r\n") + 4;
    response.head = buffer_.substr(0, end);
    buffer_.erase(0, end);
    if (!response.head.starts_with("HTTP/1.1 100")) break;
  }
  const int status = std::atoi(response.head.c_str() + 9);
  if (response.header("Transfer-Encoding") == "chunked") {
    while (true) {
      while (buffer_.find("\r\n") == std::string::npos) {
        if (!fill()) return response;
      }
      const std::size_t line = buffer_.find("\r\n");
      const std::size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!fill()) return response;
      }
      response.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) break;
    }
  } else if (const std::string length = response.header("Content-Length"); !length.empty()) {
    const std::size_t size = is_head ? 0 : std::strtoul(length.c_str(), nullptr, 10);
    while (buffer_.size() < size) {
      if (!fill()) return response;
    }
    response.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  } else if (status != 204) {
    while (fill()) {
    }
    response.body = std::exchange(buffer_, {});
  }
  response.status = status;
  return response;
}

bool HttpClient::wait_closed() {
  char bytes[65536];
  while (true) {
    const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
    if (count > 0) continue;
    return count == 0 || errno == ECONNRESET;
  }
}

void HttpClient::finish_sending() {
  ::shutdown(socket_, SHUT_WR);
}

void HttpClient::reset() {
  const linger now{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  ::close(socket_);
  socket_ = -1;
}

std::string post_request(std::string_view path, std::string_view json,
                         std::string_view more_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}"
      "Content-Length: {}\r\n\r\n{}",
      path, more_headers, json.size(), json);
}

ClientResponse HttpClient::post(std::string_view path, std::string_view json,
                                std::string_view more_headers) {
  send(post_request(path, json, more_headers));
  return read_response();
}

ClientResponse HttpClient::get(std::string_view path, std::string_view more_headers) {
  send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, more_headers));
  return read_response();
}

}  // namespace gapless
