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
#include <string>

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
  std::chrono::milliseconds idle{kHttpIdleSeconds * 1000};
  std::chrono::milliseconds head{kHttpHeadSeconds * 1000};
  std::chrono::milliseconds body{kHttpBodySeconds * 1000};
  std::chrono::milliseconds write_stall{kHttpWriteStallSeconds * 1000};
  std::chrono::milliseconds answer{kHttpAnswerSeconds * 1000};
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address
  std::uint16_t port = 2020;       // 0: any free one
  int num_threads = 2;
  int num_body_threads = 2;  // for handlers of bodies over kMaxInlineBodyBytes
  bool log_requests = true;
  HttpLimits limits;
};

class HttpServer {
 public:
  // The handler runs on the server's threads and must not block; that of a large body, whose JSON
  // and base64 take a while, on threads of its own, so that other connections do not wait for it.
  // `metrics` outlives the server.
  // Unavailable: the address cannot be used.
  using RequestHandler = std::function<void(const std::shared_ptr<Exchange>&)>;
  static StatusOr<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options,
                                                     RequestHandler handler,
                                                     ServerMetrics& metrics);
  // stop(), when that has not been done.
  ~HttpServer();

  std::uint16_t port() const;

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
