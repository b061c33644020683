// One client's connection: reads a request, lets the handler answer it, writes the answer, repeats.
//
// Everything runs on the connection's strand but what handlers do to their exchange. While an
// answer is on its way the socket is watched: its end cancels the request.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <string>

#include "server/api_error.h"
#include "server/connection_exchange.h"
#include "server/http_server.h"
#include "server/request_parser.h"

namespace gapless {

// What all connections of a server share.
struct ConnectionContext {
  HttpServerOptions options;
  HttpHandlers handlers;
  ServerMetrics* metrics = nullptr;
  boost::asio::thread_pool* body_threads = nullptr;
  std::atomic<int> num_newcomers{0};
  std::atomic<bool> keep_alive{true};
  std::atomic<bool> draining{false};
  std::atomic<std::size_t> body_bytes_in_flight{0};
  std::atomic<int> num_reading_bodies{0};
};

// A share of body_bytes_in_flight, given back on destruction.
class BodyReservation {
 public:
  explicit BodyReservation(ConnectionContext& context) : context_(context) {}
  ~BodyReservation() { context_.body_bytes_in_flight -= reserved_bytes_; }
  BodyReservation(const BodyReservation&) = delete;
  BodyReservation& operator=(const BodyReservation&) = delete;

  // False when all bodies together would be too large.
  bool grow_to(std::size_t bytes);

 private:
  ConnectionContext& context_;
  std::size_t reserved_bytes_ = 0;
};

// One of the connections that read a body now. They share what may be read in one turn of all, so that whoever sends something
// small waits for that much at most.
class BodyTurn {
 public:
  explicit BodyTurn(ConnectionContext& context) : num_reading_(context.num_reading_bodies) {
    ++num_reading_;
  }
  ~BodyTurn() { --num_reading_; }
  BodyTurn(const BodyTurn&) = delete;
  BodyTurn& operator=(const BodyTurn&) = delete;

  std::size_t bytes() const;

 private:
  std::atomic<int>& num_reading_;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // Of TCP or a Unix socket. The socket's executor is a strand.
  Connection(boost::asio::generic::stream_protocol::socket socket,
             std::shared_ptr<ConnectionContext> context);
  ~Connection();

  void start();
  // From any thread.
  void close_if_idle();
  void close_now();
  // See HttpServer. The second returns whether it was one until now.
  bool is_newcomer() const { return newcomer_.load(); }
  bool end_newcomer();

 private:
  boost::asio::awaitable<void> run();
  // False when the connection is to be closed; then an answer, if any, has been sent.
  boost::asio::awaitable<bool> read_head(RequestParser& parser);
  boost::asio::awaitable<bool> read_body(RequestParser& parser, BodyReservation& reservation);
  boost::asio::awaitable<bool> read_more();
  void read_in_place(RequestParser& parser, std::size_t most);
  boost::asio::awaitable<void> read_in_place_elsewhere(RequestParser& parser);
  boost::asio::awaitable<void> read_as_body_thread(RequestParser& parser);
  boost::asio::awaitable<void> refuse(int status, std::string message,
                                      ErrorStyle style = ErrorStyle::kObject);

  // True when the connection can take another request. `whole`: nothing of the request is unread.
  boost::asio::awaitable<bool> serve(HttpRequest request, HeadVerdict verdict, bool whole);
  void call_handler(const std::shared_ptr<ConnectionExchange>& exchange);
  boost::asio::awaitable<bool> write_response(std::shared_ptr<ConnectionExchange> exchange,
                                              bool& keep_alive);
  boost::asio::awaitable<bool> write_whole(const ConnectionExchange::Output& output,
                                           ConnectionExchange& exchange, bool keep_alive);
  boost::asio::awaitable<bool> write_bytes(std::string bytes);
  void watch_client(const std::shared_ptr<ConnectionExchange>& exchange);
  boost::asio::awaitable<void> end_watch(std::shared_ptr<ConnectionExchange> exchange);
  boost::asio::awaitable<void> linger();

  // Cancels the socket's operations when `after` has passed without another arm or disarm.
  void arm(std::chrono::milliseconds after);
  void disarm();
  void close();
  void log_request(const HttpRequest& request, const ConnectionExchange& exchange,
                   std::chrono::steady_clock::time_point began) const;

  boost::asio::generic::stream_protocol::socket socket_;
  const std::shared_ptr<ConnectionContext> context_;
  const HttpLimits& limits_;
  boost::asio::steady_timer deadline_;
  std::int64_t deadline_generation_ = 0;
  bool expired_ = false;
  bool idle_ = true;
  std::string client_;
  std::string local_address_;
  std::atomic<bool> newcomer_{true};
  bool is_read_elsewhere_ = false;  // another thread uses the socket
  std::string input_;               // read and not yet parsed
  std::string buffer_;              // for reading

  // The read that watches the client during an answer.
  boost::asio::cancellation_signal end_of_watch_;
  bool watching_ = false;
  bool watch_is_over_ = false;
  bool client_gone_ = false;
  bool input_ended_ = false;  // the client sends nothing any more

  // Of the answer being written, for the log.
  int status_ = 0;
  std::size_t sent_bytes_ = 0;
  bool aborted_ = false;
};

}  // namespace gapless
