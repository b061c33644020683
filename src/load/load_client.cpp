#include "load/load_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "load/answer_reader.h"

namespace gapless {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
// No answer of a model is longer.
constexpr std::uint64_t kMaxAnswerBytes = 64u << 20;
constexpr std::size_t kReadBytes = 64u << 10;

using Resolved = tcp::resolver::results_type;

StatusOr<Resolved> resolve(asio::io_context& io, const ServerUrl& url) {
  error_code error;
  tcp::resolver resolver(io);
  Resolved endpoints = resolver.resolve(url.host, url.port, error);
  if (error) {
    return make_error(StatusCode::kUnavailable, "{}:{}: {}", url.host, url.port, error.message());
  }
  return endpoints;
}

// When and how a client leaves without its answer.
struct Departure {
  int after_reads = 0;  // with text; 0: while it waits for the first one
  std::chrono::milliseconds wait{0};
  bool with_reset = false;
};

struct Asked {
  LoadOutcome outcome = LoadOutcome::kConnection;
  std::string error;
  std::string answer;
  LoadAnswer times;
  std::vector<float> gaps;
  bool keep_alive = false;
};

// One connection and what happens on it.
class Client {
 public:
  Client(asio::io_context& io, const Resolved& endpoints,
         std::chrono::steady_clock::time_point zero)
      : stream_(io), endpoints_(endpoints), zero_(zero) {}

  awaitable<Asked> ask(const LoadRequests& requests, std::size_t index, double timeout_s,
                       std::optional<Departure> departure) {
    Asked asked;
    asked.outcome = co_await exchange(requests, index, timeout_s, departure, asked);
    if (!asked.keep_alive) disconnect(departure && departure->with_reset);
    co_return asked;
  }

 private:
  std::int64_t now_ns() const { return (std::chrono::steady_clock::now() - zero_).count(); }

  LoadOutcome failure(const error_code& error, std::string_view when, Asked& asked) const {
    asked.error = fmt::format("{}: {}", when, error.message());
    return error == beast::error::timeout ? LoadOutcome::kTimeout : LoadOutcome::kConnection;
  }

  awaitable<LoadOutcome> exchange(const LoadRequests& requests, std::size_t index, double timeout_s,
                                  const std::optional<Departure>& departure, Asked& asked) {
    stream_.expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(timeout_s)));
    if (!connected_) {
      const auto [error, endpoint] = co_await stream_.async_connect(endpoints_, kAsTuple);
      if (error) co_return failure(error, "connecting", asked);
      connected_ = true;
      error_code ignored;
      stream_.socket().set_option(tcp::no_delay(true), ignored);
    }
    const auto [error, count] =
        co_await asio::async_write(stream_, asio::buffer(requests.bytes[index]), kAsTuple);
    if (error) co_return failure(error, "sending", asked);
    if (departure && departure->after_reads == 0) {
      asio::steady_timer timer(stream_.get_executor(), departure->wait);
      co_await timer.async_wait(kAsTuple);
      co_return LoadOutcome::kAbandoned;
    }
    co_return co_await read_answer(requests, departure, asked);
  }

  awaitable<LoadOutcome> read_answer(const LoadRequests& requests,
                                     const std::optional<Departure>& departure, Asked& asked) {
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxAnswerBytes);
    {
      const auto [error, count] =
          co_await http::async_read_header(stream_, buffer_, parser, kAsTuple);
      if (error) co_return failure(error, "waiting for the answer", asked);
    }
    const unsigned status = parser.get().result_int();
    AnswerReader reader(requests.api, requests.streams);
    std::int64_t last_text_ns = 0;
    int num_reads = 0;
    while (true) {
      std::string& body = parser.get().body();
      if (status == 200 && !body.empty()) {
        const int tokens_before = reader.num_tokens();
        reader.feed(body);
        body.clear();
        const std::int64_t now = now_ns();
        const int num_new = reader.num_tokens() - tokens_before;
        if (num_new > 0) {
          if (last_text_ns == 0) {
            asked.times.first_text_ns = now;
          } else {
            const float gap = static_cast<float>(now - last_text_ns) / static_cast<float>(num_new);
            asked.gaps.insert(asked.gaps.end(), static_cast<std::size_t>(num_new), gap);
          }
          last_text_ns = now;
          if (departure && ++num_reads == departure->after_reads) co_return LoadOutcome::kAbandoned;
        }
      }
      if (parser.is_done()) break;
      const auto [error, count] =
          co_await http::async_read_some(stream_, buffer_, parser, kAsTuple);
      if (error) co_return failure(error, "reading the answer", asked);
    }
    asked.keep_alive = parser.get().keep_alive();
    asked.times.end_ns = now_ns();
    if (status != 200) {
      asked.error = fmt::format("status {}: {:.200}", status, parser.get().body());
      co_return status == 429 || status == 503 ? LoadOutcome::kRefused : LoadOutcome::kHttpError;
    }
    reader.end();
    asked.times.num_tokens = reader.num_tokens();
    if (asked.times.first_text_ns == 0) asked.times.first_text_ns = asked.times.end_ns;
    asked.answer = reader.answer();
    if (!reader.failed() && reader.complete()) co_return LoadOutcome::kAnswered;
    asked.error = reader.failed() ? "the stream reports an error" : "the answer is not whole";
    co_return LoadOutcome::kStreamError;
  }

  void disconnect(bool with_reset) {
    error_code ignored;
    if (with_reset) stream_.socket().set_option(asio::socket_base::linger(true, 0), ignored);
    stream_.socket().close(ignored);
    connected_ = false;
    buffer_.clear();
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  const Resolved& endpoints_;
  const std::chrono::steady_clock::time_point zero_;
  bool connected_ = false;
};

class Load {
 public:
  Load(asio::io_context& io, const Resolved& endpoints, const LoadRequests& requests,
       const LoadOptions& options)
      : io_(io),
        endpoints_(endpoints),
        requests_(requests),
        options_(options),
        random_(options.seed),
        window_begin_ns_(static_cast<std::int64_t>(options.warm_up_s * 1e9)),
        zero_(std::chrono::steady_clock::now()),
        tick_(io) {}

  LoadRun run() {
    if (options_.window_begins) spawn(begin_window());
    if (options_.rate > 0) {
      spawn(arrivals());
    } else {
      for (int i = 0; i < options_.concurrency; ++i) spawn(client());
    }
    if (options_.every_second) asio::co_spawn(io_, tick(), asio::detached);
    io_.run();
    run_.num_sent = num_sent_;
    run_.elapsed_ns = now_ns();
    run_.window_begin_ns = window_begin_ns_;
    run_.window_ns = std::max<std::int64_t>(0, run_.elapsed_ns - window_begin_ns_);
    if (options_.duration_s > 0) {
      run_.window_ns =
          std::min(run_.window_ns, static_cast<std::int64_t>(options_.duration_s * 1e9));
    }
    return std::move(run_);
  }

 private:
  std::int64_t now_ns() const { return (std::chrono::steady_clock::now() - zero_).count(); }

  void spawn(awaitable<void> task) {
    ++num_tasks_;
    asio::co_spawn(io_, std::move(task), [this](const std::exception_ptr& error) {
      if (error) std::rethrow_exception(error);
      if (--num_tasks_ == 0) tick_.cancel();
    });
  }

  // Whether one more request may be sent at that time; counts it.
  bool take_turn(std::int64_t at_ns) {
    if (at_ns >= window_begin_ns_) {
      const double in_window_s = static_cast<double>(at_ns - window_begin_ns_) / 1e9;
      if (options_.duration_s > 0 && in_window_s >= options_.duration_s) return false;
      if (options_.max_requests > 0 && num_sent_in_window_ >= options_.max_requests) return false;
      ++num_sent_in_window_;
    }
    ++num_sent_;
    return true;
  }

  awaitable<void> begin_window() {
    asio::steady_timer timer(io_, zero_ + std::chrono::nanoseconds(window_begin_ns_));
    co_await timer.async_wait(kAsTuple);
    options_.window_begins();
  }

  awaitable<void> client() {
    Client client(io_, endpoints_, zero_);
    for (std::int64_t now = now_ns(); take_turn(now); now = now_ns()) {
      co_await send_one(client, num_sent_ - 1, now);
    }
  }

  awaitable<void> arrivals() {
    std::exponential_distribution<double> gap_s(options_.rate);
    asio::steady_timer timer(io_);
    double due_s = 0;
    while (true) {
      due_s += gap_s(random_);
      const auto due_ns = static_cast<std::int64_t>(due_s * 1e9);
      if (!take_turn(due_ns)) break;
      timer.expires_at(zero_ + std::chrono::nanoseconds(due_ns));
      co_await timer.async_wait(kAsTuple);
      spawn(arrival(num_sent_ - 1, due_ns));
    }
  }

  awaitable<void> arrival(std::int64_t number, std::int64_t due_ns) {
    std::unique_ptr<Client> client;
    if (idle_.empty()) {
      client = std::make_unique<Client>(io_, endpoints_, zero_);
    } else {
      client = std::move(idle_.back());
      idle_.pop_back();
    }
    co_await send_one(*client, number, due_ns);
    idle_.push_back(std::move(client));
  }

  awaitable<void> send_one(Client& client, std::int64_t number, std::int64_t intended_ns) {
    const std::size_t index =
        static_cast<std::size_t>(options_.first_request + number) % requests_.bytes.size();
    run_.max_in_flight = std::max(run_.max_in_flight, ++num_in_flight_);
    Asked asked =
        co_await client.ask(requests_, index, options_.request_timeout_s, choose_departure());
    --num_in_flight_;
    if (asked.outcome == LoadOutcome::kAnswered && !options_.expected_answers.empty() &&
        asked.answer != options_.expected_answers[index]) {
      asked.outcome = LoadOutcome::kWrongAnswer;
      asked.error = fmt::format("expected '{:.200}', got '{:.200}'",
                                options_.expected_answers[index], asked.answer);
    }
    ++run_.outcomes[static_cast<std::size_t>(asked.outcome)];
    if (asked.outcome == LoadOutcome::kAnswered) {
      asked.times.intended_ns = intended_ns;
      run_.answers.push_back(asked.times);
      if (intended_ns < window_begin_ns_) co_return;
      run_.inter_token_ns.insert(run_.inter_token_ns.end(), asked.gaps.begin(), asked.gaps.end());
    } else if (asked.outcome != LoadOutcome::kAbandoned) {
      if (run_.first_error.empty()) run_.first_error = asked.error;
      co_await pause();
    }
  }

  // A server that refuses or is gone must not be hammered, and the client must not spin.
  awaitable<void> pause() {
    asio::steady_timer timer(io_, std::chrono::milliseconds(20));
    co_await timer.async_wait(kAsTuple);
  }

  std::optional<Departure> choose_departure() {
    if (options_.abandon_share <= 0) return std::nullopt;
    if (std::uniform_real_distribution<double>()(random_) >= options_.abandon_share) {
      return std::nullopt;
    }
    Departure departure;
    departure.after_reads = static_cast<int>(random_() % 8);
    departure.wait = std::chrono::milliseconds(random_() % 200);
    departure.with_reset = random_() % 2 == 0;
    return departure;
  }

  awaitable<void> tick() {
    while (num_tasks_ > 0) {
      tick_.expires_after(std::chrono::seconds(1));
      const auto [error] = co_await tick_.async_wait(kAsTuple);
      if (!error) options_.every_second();
    }
  }

  asio::io_context& io_;
  const Resolved& endpoints_;
  const LoadRequests& requests_;
  const LoadOptions& options_;
  std::mt19937_64 random_;
  const std::int64_t window_begin_ns_;
  const std::chrono::steady_clock::time_point zero_;
  asio::steady_timer tick_;
  std::vector<std::unique_ptr<Client>> idle_;
  std::int64_t num_sent_ = 0;
  std::int64_t num_sent_in_window_ = 0;
  int num_tasks_ = 0;
  int num_in_flight_ = 0;
  LoadRun run_;
};

}  // namespace

const char* load_outcome_name(LoadOutcome outcome) {
  switch (outcome) {
    case LoadOutcome::kAnswered:
      return "answered";
    case LoadOutcome::kAbandoned:
      return "abandoned";
    case LoadOutcome::kRefused:
      return "refused";
    case LoadOutcome::kHttpError:
      return "http_error";
    case LoadOutcome::kStreamError:
      return "stream_error";
    case LoadOutcome::kWrongAnswer:
      return "wrong_answer";
    case LoadOutcome::kConnection:
      return "connection";
    case LoadOutcome::kTimeout:
      return "timeout";
  }
  return "unknown";
}

std::int64_t LoadRun::num_errors() const {
  return std::accumulate(outcomes.begin(), outcomes.end(), std::int64_t{0}) -
         count(LoadOutcome::kAnswered) - count(LoadOutcome::kAbandoned);
}

StatusOr<LoadRun> run_load(const ServerUrl& url, const LoadRequests& requests,
                           const LoadOptions& options) {
  GAPLESS_CHECK(!requests.bytes.empty());
  GAPLESS_CHECK(options.expected_answers.empty() ||
                options.expected_answers.size() == requests.bytes.size());
  asio::io_context io(1);
  GAPLESS_ASSIGN_OR_RETURN(const Resolved endpoints, resolve(io, url));
  Load load(io, endpoints, requests, options);
  return load.run();
}

StatusOr<std::vector<std::string>> ask_alone(const ServerUrl& url, const LoadRequests& requests) {
  asio::io_context io(1);
  GAPLESS_ASSIGN_OR_RETURN(const Resolved endpoints, resolve(io, url));
  std::vector<std::string> answers;
  Status failed;
  const auto ask_all = [&]() -> awaitable<void> {
    Client client(io, endpoints, std::chrono::steady_clock::now());
    for (std::size_t i = 0; i < requests.bytes.size() && failed.ok(); ++i) {
      const Asked asked = co_await client.ask(requests, i, LoadOptions().request_timeout_s, {});
      if (asked.outcome != LoadOutcome::kAnswered) {
        failed = make_error(StatusCode::kUnavailable, "request {}: {}", i, asked.error);
      }
      answers.push_back(asked.answer);
    }
  };
  asio::co_spawn(io, ask_all(), asio::detached);
  io.run();
  GAPLESS_RETURN_IF_ERROR(failed);
  return answers;
}

StatusOr<std::string> http_get(const ServerUrl& url, std::string_view path,
                               std::string_view api_key) {
  asio::io_context io(1);
  GAPLESS_ASSIGN_OR_RETURN(const Resolved endpoints, resolve(io, url));
  const std::string request =
      fmt::format("GET {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n{}{}\r\n", url.prefix,
                  path, url.host, url.port, api_key.empty() ? "" : "Authorization: Bearer ",
                  api_key.empty() ? "" : fmt::format("{}\r\n", api_key));
  tcp::socket socket(io);
  error_code error;
  asio::connect(socket, endpoints, error);
  if (!error) asio::write(socket, asio::buffer(request), error);
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  if (!error) http::read(socket, buffer, response, error);
  if (error) {
    return make_error(StatusCode::kUnavailable, "GET {}: {}", path, error.message());
  }
  if (response.result_int() != 200) {
    return make_error(StatusCode::kUnavailable, "GET {}: status {}", path, response.result_int());
  }
  return std::move(response.body());
}

}  // namespace gapless
