// HTTP requests and responses as plain values: what the handlers see. No network library here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gapless {

bool equals_ignoring_case(std::string_view a, std::string_view b);

class HttpHeaders {
 public:
  void add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  // The first with this name in any case; empty when there is none.
  std::string_view find(std::string_view name) const;
  bool has(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct HttpRequest {
  std::string method;
  std::string target;  // as it was sent
  std::string path;    // percent-decoded, without the query
  std::string query;   // behind the '?', as it was sent
  int minor_version = 1;
  bool keep_alive = true;
  HttpHeaders headers;
  std::string body;

  // Set by the connection.
  std::string request_id;        // the client's x-request-id, or a new one
  std::string client;            // address:port
  std::int64_t received_ns = 0;  // host_now_ns() when it was whole
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // beyond Content-Type, Content-Length and Connection
  std::string body;
};

std::string_view http_reason(int status);

// "%41" becomes "A". False when a '%' is not followed by two hexadecimal digits, for a NUL, and when the result is no UTF-8.
bool percent_decode(std::string_view text, std::string& out);

// The head of a response up to and with the empty line. `framing`: "Content-Length: 12",
// "Transfer-Encoding: chunked", or nothing. Control characters in values are dropped, so that no
// value can add a header.
std::string response_head(const HttpResponse& response, const HttpHeaders& more,
                          std::string_view framing, bool keep_alive, int minor_version);

}  // namespace gapless
