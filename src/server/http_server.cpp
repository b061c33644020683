#include "server/http_server.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread_priority.h"
#include "server/connection.h"
#include "server/unix_socket_file.h"

namespace gapless {

namespace asio = boost::asio;
using asio::generic::stream_protocol;
using asio::ip::tcp;
using boost::system::error_code;

class HttpServer::Impl {
 public:
  Impl(const HttpServerOptions& options, HttpHandlers handlers, ServerMetrics& metrics)
      : io_(options.num_threads),
        body_threads_(static_cast<std::size_t>(options.num_body_threads)),
        strand_(asio::make_strand(io_)) {
    context_ = std::make_shared<ConnectionContext>();
    context_->options = options;
    context_->handlers = std::move(handlers);
    context_->metrics = &metrics;
    context_->body_threads = &body_threads_;
  }

  Status listen() {
    const HttpServerOptions& options = context_->options;
    if (options.unix_socket) return listen_on_unix_socket(*options.unix_socket);
    GAPLESS_RETURN_IF_ERROR(listen(options.port));
    return options.second_port ? listen(*options.second_port) : ok_status();
  }

  void start_threads() {
    for (Listener& listener : listeners_) {
      asio::co_spawn(strand_, accept_clients(listener), asio::detached);
    }
    for (int i = 0; i < context_->options.num_threads; ++i) {
      threads_.emplace_back([this] {
        come_soon();
        io_.run();
      });
    }
  }

  std::uint16_t port(std::size_t index) const {
    return index < listeners_.size() ? listeners_[index].port : 0;
  }

  void end_keep_alive() { context_->keep_alive.store(false); }

  void begin_drain() {
    context_->draining.store(true);
    asio::post(strand_, [this] { close_listeners(); });
    for (const auto& connection : live_connections()) connection->close_if_idle();
  }

  bool wait_drained(std::chrono::milliseconds timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    // A connection may have been accepted, or become idle, just when the drain began.
    while (context_->metrics->num_connections.load() > 0) {
      if (std::chrono::steady_clock::now() >= until) return false;
      for (const auto& connection : live_connections()) connection->close_if_idle();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  void stop() {
    if (threads_.empty()) return;
    begin_drain();
    for (const auto& connection : live_connections()) connection->close_now();
    // Their coroutines end by themselves; those that hang on something else die with io_.
    wait_drained(std::chrono::milliseconds(500));
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    // What still runs there finds its exchange; what waits is dropped.
    body_threads_.stop();
    body_threads_.join();
    // What begin_drain() posted may not have run before io_ stopped; a socket left listening would
    // take connections that nobody answers.
    close_listeners();
  }

 private:
  struct Listener {
    asio::basic_socket_acceptor<stream_protocol> acceptor;
    std::uint16_t port = 0;                   // 0: of a Unix socket
    std::optional<UnixSocketFile> file = {};  // removed when the listener closes
  };

  Status listen(std::uint16_t port) {
    const std::string& host = context_->options.host;
    error_code error;
    const asio::ip::address address = asio::ip::make_address(host, error);
    if (error) return invalid_argument("'{}' is not an address to listen on", host);
    const tcp::endpoint endpoint(address, port);
    tcp::acceptor acceptor(strand_);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port = acceptor.local_endpoint(error).port();
    if (error) {
      return make_error(StatusCode::kUnavailable, "cannot listen on {}:{}: {}", host, port,
                        error.message());
    }
    listeners_.push_back({.acceptor = std::move(acceptor), .port = port});
    return ok_status();
  }

  Status listen_on_unix_socket(const std::string& path) {
    GAPLESS_RETURN_IF_ERROR(UnixSocketFile::make_room(path));
    asio::local::stream_protocol::acceptor acceptor(strand_);
    error_code error;
    acceptor.open({}, error);
    if (!error) acceptor.bind(asio::local::stream_protocol::endpoint(path), error);
    if (error) {
      return make_error(StatusCode::kUnavailable, "cannot listen on {}: {}", path, error.message());
    }
    // Nobody can connect before listen(): by then the file is for its owner alone.
    GAPLESS_ASSIGN_OR_RETURN(UnixSocketFile file, UnixSocketFile::take(path));
    acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return make_error(StatusCode::kUnavailable, "cannot listen on {}: {}", path, error.message());
    }
    listeners_.push_back({.acceptor = std::move(acceptor), .file = std::move(file)});
    return ok_status();
  }

  void close_listeners() {
    error_code ignored;
    for (Listener& listener : listeners_) {
      listener.acceptor.close(ignored);
      listener.file.reset();
    }
  }

  std::vector<std::shared_ptr<Connection>> live_connections() {
    MutexLock lock(mutex_);
    std::vector<std::shared_ptr<Connection>> live;
    for (auto at = connections_.begin(); at != connections_.end();) {
      if (auto connection = at->lock()) {
        live.push_back(std::move(connection));
        ++at;
      } else {
        at = connections_.erase(at);
      }
    }
    return live;
  }

  void remember(const std::shared_ptr<Connection>& connection) {
    MutexLock lock(mutex_);
    // Dead ones are swept when they may be half of the list: a constant amount of work each.
    if (connections_.size() >= 2 * num_live_at_sweep_ + 64) {
      std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
      num_live_at_sweep_ = connections_.size();
    }
    connections_.push_back(connection);
  }

  asio::awaitable<void> accept_clients(Listener& listener) {
    auto& acceptor = listener.acceptor;
    asio::steady_timer pause(strand_);
    while (acceptor.is_open()) {
      auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(io_),
                                                            asio::as_tuple(asio::use_awaitable));
      if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
      if (error) {
        // Out of file descriptors, most likely: they come back, and sooner from whoever has not asked.
        log_warning("cannot accept a connection: {}", error.message());
        if (error == asio::error::no_descriptors) turn_out_oldest_newcomer();
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
        continue;
      }
      if (!make_room()) {
        log_warning("{} connections are open: one more was closed",
                    context_->options.limits.max_connections);
        continue;
      }
      auto connection = std::make_shared<Connection>(std::move(socket), context_);
      remember(connection);
      newcomers_.push_back(connection);
      connection->start();
    }
  }

  // False: there is no room for one more connection.
  bool make_room() {
    const HttpLimits& limits = context_->options.limits;
    const auto max_newcomers = static_cast<std::size_t>(limits.max_newcomers);
    // Those that were admitted or have ended are swept out when they may be half of the list.
    if (newcomers_.size() >= 2 * max_newcomers) {
      std::erase_if(newcomers_, [](const auto& weak) {
        const auto connection = weak.lock();
        return !connection || !connection->is_newcomer();
      });
    }
    const bool full = context_->metrics->num_connections.load() >= limits.max_connections;
    if (!full && context_->num_newcomers.load() < limits.max_newcomers) return true;
    return turn_out_oldest_newcomer() || !full;
  }

  bool turn_out_oldest_newcomer() {
    while (!newcomers_.empty()) {
      const auto oldest = newcomers_.front().lock();
      newcomers_.pop_front();
      if (!oldest || !oldest->end_newcomer()) continue;
      oldest->close_now();
      return true;
    }
    return false;
  }

  asio::io_context io_;
  // Until stop(). Otherwise threads end when the acceptor and the last connection do, and what is
  // posted to a connection just then is never run: it would stay open for ever.
  asio::executor_work_guard<asio::io_context::executor_type> work_{asio::make_work_guard(io_)};
  asio::thread_pool body_threads_;
  asio::strand<asio::io_context::executor_type> strand_;  // the acceptors'
  std::deque<Listener> listeners_;                        // all there before the threads start
  std::shared_ptr<ConnectionContext> context_;
  Mutex mutex_;
  std::vector<std::weak_ptr<Connection>> connections_ GAPLESS_GUARDED_BY(mutex_);
  std::size_t num_live_at_sweep_ GAPLESS_GUARDED_BY(mutex_) = 0;
  // In the order in which they came, with some that are none any more. Of accept_clients() alone, on strand_.
  std::deque<std::weak_ptr<Connection>> newcomers_;
  std::vector<std::thread> threads_;
};

StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options,
                                                        HttpHandlers handlers,
                                                        ServerMetrics& metrics) {
  auto impl = std::make_unique<Impl>(options, std::move(handlers), metrics);
  GAPLESS_RETURN_IF_ERROR(impl->listen());
  impl->start_threads();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  stop();
}

std::uint16_t HttpServer::port() const {
  return impl_->port(0);
}

std::uint16_t HttpServer::second_port() const {
  return impl_->port(1);
}

void HttpServer::end_keep_alive() {
  impl_->end_keep_alive();
}

void HttpServer::begin_drain() {
  impl_->begin_drain();
}

bool HttpServer::wait_drained(std::chrono::milliseconds timeout) {
  return impl_->wait_drained(timeout);
}

void HttpServer::stop() {
  impl_->stop();
}

}  // namespace gapless
