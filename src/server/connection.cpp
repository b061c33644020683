#include "server/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <span>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread_priority.h"
#include "server/api_error.h"
#include "server/as_tuple.h"

namespace gapless {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;

namespace {

constexpr std::size_t kReadBytes = 16u << 10;
// Of bodies, where they will lie, before others have their turn.
constexpr std::size_t kMostReadInTurn = 256u << 10;
constexpr std::size_t kMostReadElsewhere = 1u << 20;

bool is_request_id(std::string_view text) {
  if (text.empty() || text.size() > kMaxRequestIdBytes) return false;
  for (const char c : text) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!word && std::string_view("-_.:/=+@").find(c) == std::string_view::npos) return false;
  }
  return true;
}

std::string new_request_id() {
  thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("{:016x}", random());
}

// For the log: a path is the client's text and must not look like a field of ours.
std::string quote_for_log(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 256)) {
    const bool plain = c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
    if (plain) {
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + "\"";
}

// Nothing for the endpoint of a Unix socket.
std::optional<asio::ip::tcp::endpoint> tcp_endpoint(
    const asio::generic::stream_protocol::endpoint& endpoint) {
  const int family = endpoint.protocol().family();
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  asio::ip::tcp::endpoint tcp;
  if (endpoint.size() > tcp.capacity()) return std::nullopt;
  std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
  tcp.resize(endpoint.size());
  return tcp;
}

}  // namespace

bool BodyReservation::grow_to(std::size_t bytes) {
  if (bytes <= reserved_bytes_) return true;
  const std::size_t more = bytes - reserved_bytes_;
  reserved_bytes_ = bytes;
  return context_.body_bytes_in_flight.fetch_add(more) + more <=
         context_.options.limits.max_body_bytes_in_flight;
}

std::size_t BodyTurn::bytes() const {
  return kMostReadInTurn / static_cast<std::size_t>(std::max(1, num_reading_.load()));
}

Connection::Connection(asio::generic::stream_protocol::socket socket,
                       std::shared_ptr<ConnectionContext> context)
    : socket_(std::move(socket)),
      context_(std::move(context)),
      limits_(context_->options.limits),
      deadline_(socket_.get_executor()) {
  error_code error;
  if (const auto local = tcp_endpoint(socket_.local_endpoint(error))) {
    local_address_ = local->address().to_string();
    const auto peer = tcp_endpoint(socket_.remote_endpoint(error));
    if (peer) client_ = fmt::format("{}:{}", peer->address().to_string(), peer->port());
    socket_.set_option(asio::ip::tcp::no_delay(true), error);
  } else {
    client_ = "unix";
  }
  buffer_.resize(kReadBytes);
  ++context_->metrics->num_connections;
  ++context_->num_newcomers;
}

Connection::~Connection() {
  end_newcomer();
  --context_->metrics->num_connections;
}

bool Connection::end_newcomer() {
  if (!newcomer_.exchange(false)) return false;
  --context_->num_newcomers;
  return true;
}

void Connection::start() {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->run(); }, asio::detached);
}

void Connection::close_if_idle() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->idle_) self->close();
  });
}

void Connection::close_now() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
}

void Connection::close() {
  error_code ignored;
  deadline_.cancel();
  if (is_read_elsewhere_) {  // the next read finds the end, and so does the client
    socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  } else {
    socket_.close(ignored);
  }
}

void Connection::arm(std::chrono::milliseconds after) {
  expired_ = false;
  const std::int64_t generation = ++deadline_generation_;
  deadline_.expires_after(after);
  deadline_.async_wait([weak = weak_from_this(), generation](error_code error) {
    const auto self = weak.lock();
    if (error || !self || generation != self->deadline_generation_) return;
    self->expired_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void Connection::disarm() {
  ++deadline_generation_;
  deadline_.cancel();
}

awaitable<void> Connection::run() {
  try {
    bool open = true;
    while (open && socket_.is_open() && !context_->draining.load()) {
      RequestParser parser(limits_.max_header_bytes, limits_.max_body_bytes);
      BodyReservation reservation(*context_);
      idle_ = true;
      const bool has_head = co_await read_head(parser);
      idle_ = false;
      if (!has_head) break;
      disarm();
      // Before a byte of the body is read: nobody gets memory who may not use the server.
      HeadVerdict verdict = context_->handlers.judge(parser.head(), local_address_);
      if (verdict.admitted) end_newcomer();
      if (!verdict.refusal && !co_await read_body(parser, reservation)) break;
      const bool whole = parser.state() == RequestParser::State::kDone;
      open = co_await serve(parser.take(), std::move(verdict), whole);
      if (!whole) co_await linger();
    }
  } catch (const std::exception& error) {
    log_warning("client={} connection failed: {}", client_, error.what());
  }
  disarm();
  close();
}

// Appends to input_. False at the end of the stream, on an error, and when the deadline passed.
awaitable<bool> Connection::read_more() {
  // Asio would wait for ever: it expects no event after the end of a stream.
  if (input_ended_) co_return false;
  // It passed when a read had just ended, and so found none to cancel.
  if (expired_) co_return false;
  const auto [error, count] = co_await socket_.async_read_some(asio::buffer(buffer_), kAsTuple);
  input_.append(buffer_, 0, count);
  co_return !error;
}

// What is there of a body, without a copy and without a turn of the scheduler for each part. (Room is taken for what is there only:
// a client that sends slowly holds no memory but for what it sent.)
void Connection::read_in_place(RequestParser& parser, std::size_t most) {
  error_code error;
  const std::size_t there = std::min(socket_.available(error), most);
  if (error || there <= kReadBytes) return;
  const std::span<char> room = parser.body_room(there);
  if (room.empty()) return;
  const std::size_t count = socket_.read_some(asio::buffer(room.data(), room.size()), error);
  parser.take_body(room, count);  // whoever reads next finds an error again
}

// As above, on a thread for large bodies. The copying, and the system's clearing of memory for them, take a good part of the time
// of a core when many come at once: a thread that did it would be late for those who ask for something small.
awaitable<void> Connection::read_in_place_elsewhere(RequestParser& parser) {
  error_code error;
  if (socket_.available(error) <= kReadBytes) co_return;
  is_read_elsewhere_ = true;
  co_await asio::co_spawn(*context_->body_threads, read_as_body_thread(parser),
                          asio::use_awaitable);
  is_read_elsewhere_ = false;
}

awaitable<void> Connection::read_as_body_thread(RequestParser& parser) {
  yield_to_other_threads();
  read_in_place(parser, kMostReadElsewhere);
  co_return;
}

awaitable<bool> Connection::read_head(RequestParser& parser) {
  arm(limits_.idle);
  bool begun = false;
  while (true) {
    // Empty lines before a request are allowed (RFC 9112, 2.2).
    while (!begun && input_.starts_with("\r\n")) input_.erase(0, 2);
    if (!input_.empty() && input_ != "\r") {
      if (!begun) {
        begun = true;
        idle_ = false;
        arm(limits_.head);
      }
      input_.erase(0, parser.feed(input_));
      if (parser.state() == RequestParser::State::kFailed) {
        co_await refuse(parser.error_status(), parser.error());
        co_return false;
      }
      if (parser.state() != RequestParser::State::kHead) co_return true;
    }
    if (!co_await read_more()) {
      if (expired_ && begun) co_await refuse(408, "the request's head took too long");
      co_return false;
    }
  }
}

awaitable<bool> Connection::read_body(RequestParser& parser, BodyReservation& reservation) {
  if (parser.state() == RequestParser::State::kDone) co_return true;
  if (parser.expects_continue() && input_.empty() &&
      !co_await write_bytes("HTTP/1.1 100 Continue\r\n\r\n")) {
    co_return false;
  }
  const ErrorStyle style = error_style_of(parser.head().path);
  std::optional<BodyTurn> turn;  // not of a large body, which is read elsewhere
  if (parser.body_bytes_left() <= kMaxInlineBodyBytes) turn.emplace(*context_);
  arm(limits_.body);
  while (true) {
    if (!input_.empty()) {
      const std::size_t used = parser.feed(input_);
      input_.erase(0, used);
      if (parser.state() == RequestParser::State::kFailed) {
        co_await refuse(parser.error_status(), parser.error(), style);
        co_return false;
      }
      if (parser.body_bytes_left() > 0) {
        if (turn) {
          read_in_place(parser, turn->bytes());
        } else {
          co_await read_in_place_elsewhere(parser);
        }
      }
      if (!reservation.grow_to(parser.body_bytes_so_far())) {
        co_await refuse(503, "too many large requests are running", style);
        co_return false;
      }
      if (parser.state() == RequestParser::State::kDone) {
        disarm();
        co_return true;
      }
      if (used > 0) continue;
    }
    if (!co_await read_more()) {
      if (expired_) co_await refuse(408, "the request's body took too long", style);
      co_return false;
    }
  }
}

// Answers what was not (wholly) read and gives the client time to see the answer.
awaitable<void> Connection::refuse(int status, std::string message, ErrorStyle style) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.code = status == 413 ? "body_too_large" : "bad_http";
  if (status == 503) error.retry_after_s = kRetryAfterSeconds;
  HttpResponse response = error_response(error, style);
  context_->metrics->count_response(status);
  if (context_->options.log_requests) {
    log_warning("client={} status={} refused={}", client_, status, quote_for_log(error.message));
  }
  const std::string framing = fmt::format("Content-Length: {}", response.body.size());
  const bool sent =
      co_await write_bytes(response_head(response, {}, framing, false, 1) + response.body);
  if (sent) co_await linger();
}

// Half-closes and reads what the client is still sending: closing at once would reset the
// connection, and the client would not see the answer.
awaitable<void> Connection::linger() {
  constexpr std::size_t kMaxLingerBytes = 4u << 20;
  constexpr std::chrono::milliseconds kMaxLinger{1000};
  error_code error;
  socket_.shutdown(asio::socket_base::shutdown_send, error);
  arm(kMaxLinger);
  for (std::size_t total = 0; total < kMaxLingerBytes && !expired_;) {
    const auto [read_error, count] =
        co_await socket_.async_read_some(asio::buffer(buffer_), kAsTuple);
    if (read_error) break;
    total += count;
  }
  disarm();
}

awaitable<bool> Connection::serve(HttpRequest request, HeadVerdict verdict, bool whole) {
  const auto began = std::chrono::steady_clock::now();
  const std::string_view given_id = request.headers.find("X-Request-Id");
  request.request_id = is_request_id(given_id) ? std::string(given_id) : new_request_id();
  request.client = client_;
  request.received_ns = host_now_ns();
  bool keep_alive = whole && request.keep_alive;

  auto exchange = std::make_shared<ConnectionExchange>(socket_.get_executor(), std::move(request),
                                                       limits_.max_outbox_bytes);
  exchange->add_header("X-Request-Id", exchange->request().request_id);
  for (const auto& [name, value] : verdict.headers.fields()) exchange->add_header(name, value);
  status_ = 0;
  sent_bytes_ = 0;
  aborted_ = false;
  client_gone_ = false;
  if (verdict.refusal) {
    exchange->respond(*std::move(verdict.refusal));
  } else {
    call_handler(exchange);
  }

  if (!exchange->is_complete()) watch_client(exchange);
  const bool sent = co_await write_response(exchange, keep_alive);
  co_await end_watch(exchange);
  if (!sent) {
    aborted_ = true;
    context_->metrics->count_abort();
    exchange->abort();
  }
  exchange->finish();
  if (status_ != 0) context_->metrics->count_response(status_);
  if (context_->options.log_requests) log_request(exchange->request(), *exchange, began);
  co_return sent&& keep_alive;
}

// Of a handler that throws the last handle goes, and the exchange answers 500 by itself.
void Connection::call_handler(const std::shared_ptr<ConnectionExchange>& exchange) {
  const auto call = [context = context_](const std::shared_ptr<Exchange>& handle) {
    try {
      context->handlers.answer(handle);
    } catch (const std::exception& error) {
      log_error("request_id={} handler failed: {}", handle->request().request_id, error.what());
    }
  };
  if (exchange->request().body.size() <= kMaxInlineBodyBytes) return call(exchange->handle());
  asio::post(*context_->body_threads, [call, handle = exchange->handle()] {
    yield_to_other_threads();
    call(handle);
  });
}

// Reads while an answer is on its way: the end of the stream says that nobody waits for it any
// more. What else comes is the next request's, up to a bound.
void Connection::watch_client(const std::shared_ptr<ConnectionExchange>& exchange) {
  watching_ = true;
  client_gone_ = false;
  socket_.async_read_some(
      asio::buffer(buffer_),
      asio::bind_cancellation_slot(end_of_watch_.slot(), [self = shared_from_this(), exchange](
                                                             error_code error, std::size_t count) {
        self->watching_ = false;
        self->input_.append(self->buffer_, 0, count);
        // Also when the answer went out just now and nobody asks any more.
        if (error && error != asio::error::operation_aborted) self->input_ended_ = true;
        if (!error && !self->watch_is_over_ && self->input_.size() < kMaxHttpReadAheadBytes) {
          return self->watch_client(exchange);
        }
        if (error && !self->watch_is_over_) {
          self->client_gone_ = true;
          error_code ignored;
          self->socket_.cancel(ignored);  // a write that waits
        }
        exchange->wake().cancel();
      }));
}

// The next read must not begin before this one has ended.
awaitable<void> Connection::end_watch(std::shared_ptr<ConnectionExchange> exchange) {
  watch_is_over_ = true;
  end_of_watch_.emit(asio::cancellation_type::all);
  while (watching_) {
    exchange->wake().expires_at(asio::steady_timer::time_point::max());
    co_await exchange->wake().async_wait(kAsTuple);
  }
  watch_is_over_ = false;
}

// True when all of it went out.
awaitable<bool> Connection::write_response(std::shared_ptr<ConnectionExchange> exchange,
                                           bool& keep_alive) {
  const HttpRequest& request = exchange->request();
  const bool chunked = request.minor_version >= 1;
  while (true) {
    ConnectionExchange::Output output = exchange->take();
    if (output.broken || client_gone_) co_return false;
    std::string bytes;
    if (output.head) {
      status_ = output.head->status;
      // The server may have begun to leave since the request came.
      keep_alive = keep_alive && context_->keep_alive.load() && !context_->draining.load();
      if (!output.is_stream) co_return co_await write_whole(output, *exchange, keep_alive);
      bytes = response_head(*output.head, exchange->more_headers(),
                            chunked ? "Transfer-Encoding: chunked" : "", chunked && keep_alive,
                            request.minor_version);
    }
    if (!output.bytes.empty()) {
      if (chunked) bytes += fmt::format("{:x}\r\n", output.bytes.size());
      bytes += output.bytes;
      if (chunked) bytes += "\r\n";
    }
    if (output.ended && chunked) bytes += "0\r\n\r\n";
    const bool wrote = !bytes.empty();
    if (wrote && !co_await write_bytes(std::move(bytes))) co_return false;
    // Without chunks the end of a stream is the end of the connection.
    if (output.ended) {
      if (!chunked) close();
      co_return true;
    }
    // More may have come while this was being written.
    if (wrote) continue;
    exchange->wake().expires_after(limits_.answer);
    const auto [error] = co_await exchange->wake().async_wait(kAsTuple);
    if (error) continue;
    // Nothing came for too long.
    if (status_ == 0) {
      ApiError late;
      late.status = 504;
      late.message = "no answer in time";
      late.code = "timeout";
      exchange->respond(error_response(late, error_style_of(request.path)));
      exchange->abort();  // now: what it makes the handler say comes too late
      continue;
    }
    co_return false;
  }
}

awaitable<bool> Connection::write_whole(const ConnectionExchange::Output& output,
                                        ConnectionExchange& exchange, bool keep_alive) {
  const HttpResponse& response = *output.head;
  const std::string framing =
      response.status == 204 ? "" : fmt::format("Content-Length: {}", response.body.size());
  std::string bytes = response_head(response, exchange.more_headers(), framing, keep_alive,
                                    exchange.request().minor_version);
  if (exchange.request().method != "HEAD") bytes += response.body;
  co_return co_await write_bytes(std::move(bytes));
}

// A client has limits_.write_stall to take some of it, again and again.
awaitable<bool> Connection::write_bytes(std::string bytes) {
  std::string_view left = bytes;
  while (!left.empty()) {
    arm(limits_.write_stall);
    const auto [error, count] =
        co_await socket_.async_write_some(asio::buffer(left.data(), left.size()), kAsTuple);
    disarm();
    if (error) co_return false;
    left.remove_prefix(count);
    sent_bytes_ += count;
  }
  co_return true;
}

void Connection::log_request(const HttpRequest& request, const ConnectionExchange& exchange,
                             std::chrono::steady_clock::time_point began) const {
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
  log_info("request_id={} client={} method={} path={} status={} bytes={} ms={:.2f}{}{}",
           request.request_id, client_, quote_for_log(request.method), quote_for_log(request.path),
           status_, sent_bytes_, ms, aborted_ ? " aborted=true" : "", exchange.annotations());
}

}  // namespace gapless
