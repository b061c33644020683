// The HTTP/1.1 server: listens, reads requests, writes answers. It knows no API.
//
// Order of ends: stop() the server (or let its drain finish), then the fetcher, then destroy the
// service, whose last events still find their exchanges, then the server, then the ServerState.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/limits.h"
#include "base/status.h"
#include "server/exchange.h"
#include "server/metrics.h"

namespace gapless {

// Bounds of limits.h; tests make them small.
struct HttpLimits {
  std::size_t max_header_bytes = kMaxHttpHeaderBytes;
  std::size_t max_body_bytes = kMaxHttpBodyBytes;
  std::size_t max_body_bytes_in_flight = kMaxHttpBodyBytesInFlight;
  std::size_t max_outbox_bytes = kMaxHttpOutboxBytes;
  int max_connections = kMaxHttpConnections;
  int max_newcomers = kMaxHttpNewcomers;
  std::chrono::milliseconds idle{kHttpIdleSeconds * 1000};
  std::chrono::milliseconds head{kHttpHeadSeconds * 1000};
  std::chrono::milliseconds body{kHttpBodySeconds * 1000};
  std::chrono::milliseconds write_stall{kHttpWriteStallSeconds * 1000};
  std::chrono::milliseconds answer{kHttpAnswerSeconds * 1000};
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address
  std::uint16_t port = 2020;       // 0: any free one
  // Listened on in place of host and port. Only the user that the process runs as may connect. A
  // socket that a dead server left there is replaced; ours is removed when the server stops listening.
  std::optional<std::string> unix_socket;
  // A second port that answers the same, for clients that expect another one; 0: any free one.
  std::optional<std::uint16_t> second_port;
  int num_threads = 2;
  int num_body_threads = 2;  // that read bodies over kMaxInlineBodyBytes and answer their requests
  bool log_requests = true;
  HttpLimits limits;
};

// What is done with a request of which only the head has been read.
struct HeadVerdict {
  // Answered with this: the body is neither read nor kept, and a connection with one is closed.
  std::optional<HttpResponse> refusal;
  HttpHeaders headers;    // of the answer, whichever it is
  bool admitted = false;  // the client may use the server: its connection is a newcomer no more
};

// Both run on the server's threads and must not block.
struct HttpHandlers {
  // `local_address`: the one of ours that the client has connected to; empty: a Unix socket.
  std::function<HeadVerdict(const HttpRequest& head, std::string_view local_address)> judge;
  // A whole request that was not refused. Of a large body, whose JSON and base64 take a while, on
  // threads of their own, so that other connections do not wait for it.
  std::function<void(const std::shared_ptr<Exchange>&)> answer;
};

// A connection is a *newcomer* until a request of it was admitted. When newcomers are too many, or
// connections are, the longest-standing newcomer is closed for the next one: so strangers cannot
// keep clients out by holding connections, and what they hold is small (a head each).
class HttpServer {
 public:
  // `metrics` outlives the server. Unavailable: the address cannot be used.
  static StatusOr<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options,
                                                     HttpHandlers handlers, ServerMetrics& metrics);
  // stop(), when that has not been done.
  ~HttpServer();

  // 0: the server listens on a Unix socket.
  std::uint16_t port() const;
  // 0: there is none.
  std::uint16_t second_port() const;

  // Closes every connection after its next answer, and says so there, so that clients that keep
  // connections leave them. New ones are taken as before. Any thread.
  void end_keep_alive();
  // Takes no more connections, closes those that are idle, lets running answers finish and closes
  // their connections then. Any thread.
  void begin_drain();
  // True once every connection is closed; false after `timeout`.
  bool wait_drained(std::chrono::milliseconds timeout);

  // Aborts what is running, closes everything and ends the threads.
  void stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gapless
