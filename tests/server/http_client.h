// A client that shows what is on the wire: blocking sockets, no cleverness.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gapless {

struct ClientResponse {
  int status = 0;    // 0: the connection ended before a whole response
  std::string head;  // with its empty line
  std::string body;  // without chunk framing
  std::string header(std::string_view name) const;  // empty when there is none
  // The JSON of each "data: ..." event, in order; what is not such a line is an element "?...".
  std::vector<std::string> events() const;
};

// Where a server listens.
struct ServerAddress {
  std::uint16_t port = 0;   // of 127.0.0.1
  std::string unix_socket;  // in its place, unless empty
};

class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port);
  explicit HttpClient(const ServerAddress& address);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False when the server has closed.
  bool send(std::string_view bytes);
  // Sends until the other side has taken nothing for half a second; how many bytes it took.
  std::size_t send_what_is_taken(std::string_view bytes);
  // Whatever comes next, or nothing at the end of the stream (or after 10 s).
  std::string receive();
  // Reads until `count` bytes or the text `until` are there, or the end.
  std::string receive_until(std::string_view until);
  // One whole response; what follows it is kept for the next call.
  ClientResponse read_response(bool is_head = false);
  // True when the server closes within 10 s; what it still sends is dropped.
  bool wait_closed();
  // Half-closes the sending side.
  void finish_sending();
  // Closes with a reset instead of a goodbye.
  void reset();

  ClientResponse post(std::string_view path, std::string_view json,
                      std::string_view more_headers = "");
  ClientResponse get(std::string_view path, std::string_view more_headers = "");

 private:
  int socket_ = -1;
  std::string buffer_;
};

std::string post_request(std::string_view path, std::string_view json,
                         std::string_view more_headers = "");

}  // namespace gapless
