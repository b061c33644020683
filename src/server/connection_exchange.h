// The exchange of a connection: handlers fill it from any thread, the connection's writer empties
// it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "server/exchange.h"

namespace gapless {

class ConnectionExchange final : public Exchange,
                                 public std::enable_shared_from_this<ConnectionExchange> {
 public:
  // `strand`: the connection's; wake() is used on it alone.
  ConnectionExchange(boost::asio::any_io_executor strand, HttpRequest request,
                     std::size_t max_outbox_bytes);

  // What handlers hold: when the last handle goes without an end of the response, it is ended here.
  std::shared_ptr<Exchange> handle();

  HttpRequest& request() override { return request_; }
  void add_header(std::string name, std::string value) override;
  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head) override;
  bool write(std::string bytes) override;
  void end_stream() override;
  void on_abort(std::function<void()> abort) override;
  void annotate(std::string_view text) override;

  // --- For the connection, on its strand.

  // What there is to send now. A response that is not a stream comes in one piece.
  struct Output {
    std::optional<HttpResponse> head;  // once, first
    bool is_stream = false;
    std::string bytes;  // of a stream
    bool ended = false;
    bool broken = false;  // the client does not read, or the handler gave up: close
  };
  Output take();
  bool is_complete() const;

  // Cancelled whenever there may be something to take. The writer sets its expiry and waits.
  boost::asio::steady_timer& wake() { return wake_; }

  const HttpHeaders& more_headers() const { return more_headers_; }

  // The client is gone: calls the handler's on_abort, drops what is queued.
  void abort();
  // The response was sent or given up: forgets the handler's on_abort.
  void finish();
  std::string annotations() const;

 private:
  void handler_dropped();
  void notify();

  const boost::asio::any_io_executor strand_;
  HttpRequest request_;
  const std::size_t max_outbox_bytes_;
  boost::asio::steady_timer wake_;
  HttpHeaders more_headers_;

  mutable Mutex mutex_;
  std::optional<HttpResponse> head_ GAPLESS_GUARDED_BY(mutex_);
  std::string outbox_ GAPLESS_GUARDED_BY(mutex_);
  std::string annotations_ GAPLESS_GUARDED_BY(mutex_);
  std::function<void()> abort_ GAPLESS_GUARDED_BY(mutex_);
  bool started_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool is_stream_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool ended_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool aborted_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool broken_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool finished_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool wake_posted_ GAPLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gapless
