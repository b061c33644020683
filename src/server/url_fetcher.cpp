#include "server/url_fetcher.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <thread>
#include <variant>

#include "base/url.h"
#include "server/as_tuple.h"

namespace gapless {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::uint32_t kMaxResponseHeadBytes = 16u << 10;

Status unavailable(std::string_view what, const error_code& error) {
  return make_error(StatusCode::kUnavailable, "{}: {}", what, error.message());
}

bool is_redirect(unsigned status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

class UrlFetcher::Impl {
 public:
  explicit Impl(FetchPolicy policy)
      : policy_(std::move(policy)),
        io_(std::make_unique<asio::io_context>(1)),
        work_(asio::make_work_guard(*io_)),
        tls_(asio::ssl::context::tls_client) {}

  Status prepare() {
    error_code error;
    tls_.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
    tls_.set_verify_mode(asio::ssl::verify_peer, error);
    if (policy_.ca_file.empty()) {
      tls_.set_default_verify_paths(error);
    } else {
      tls_.load_verify_file(policy_.ca_file, error);
    }
    if (error) return invalid_argument("{}: {}", policy_.ca_file, error.message());
    thread_ = std::thread([this] { io_->run(); });
    return ok_status();
  }

  void fetch(std::string url, Done done) {
    if (num_running_.fetch_add(1) >= kMaxFetchesAtOnce) {
      --num_running_;
      // On the thread that it is promised for.
      asio::post(*io_, [done = std::move(done)] {
        done(make_error(StatusCode::kResourceExhausted, "{} pictures are being fetched already",
                        kMaxFetchesAtOnce));
      });
      return;
    }
    auto job = std::make_shared<Job>(*io_, std::move(url), std::move(done));
    asio::post(*io_, [this, job] {
      job->deadline.expires_after(policy_.timeout);
      job->deadline.async_wait([job](const error_code& error) {
        if (error) return;
        job->finish(make_error(StatusCode::kUnavailable, "no answer in time"));
        job->close();
      });
      asio::co_spawn(*io_, run(job), asio::detached);
    });
  }

  Status check(std::string_view text) const {
    GAPLESS_ASSIGN_OR_RETURN(const Url url, parse_url(text));
    return check_host(url);
  }

  void stop() {
    if (!thread_.joinable()) return;
    io_->stop();
    thread_.join();
    // With what waits in it: exchanges must go while the server that they belong to is there.
    work_.reset();
    io_.reset();
  }

 private:
  // A fetch with all of its hops. The deadline answers first where a name's resolution, which
  // cannot be interrupted, takes too long.
  struct Job {
    Job(asio::io_context& io, std::string address, Done when_done)
        : url(std::move(address)), done(std::move(when_done)), deadline(io), socket(io) {}
    void finish(StatusOr<std::string> result) {
      if (const Done call = std::exchange(done, nullptr)) call(std::move(result));
    }
    bool is_over() const { return done == nullptr; }
    void close() {
      error_code ignored;
      socket.close(ignored);
    }
    const std::string url;
    Done done;
    asio::steady_timer deadline;
    tcp::socket socket;
  };

  using Hop = std::variant<std::string, Url>;  // the body, or where to go next

  awaitable<void> run(std::shared_ptr<Job> job) {
    StatusOr<std::string> result = co_await follow(*job);
    const auto end = job->deadline.expiry();
    job->deadline.cancel();
    job->close();
    --num_running_;
    if (policy_.hide_names && result.status().code() == StatusCode::kNotFound) {
      job->deadline.expires_at(end);
      co_await job->deadline.async_wait(kAsTuple);
    }
    job->finish(std::move(result));
  }

  awaitable<StatusOr<std::string>> follow(Job& job) {
    StatusOr<Url> url = parse_url(job.url);
    for (int hop = 0; hop <= policy_.max_redirects; ++hop) {
      if (!url.ok()) co_return url.status();
      StatusOr<Hop> next = co_await visit(job, *url);
      if (!next.ok()) co_return next.status();
      if (auto* body = std::get_if<std::string>(&next.value())) co_return std::move(*body);
      url = std::get<Url>(next.value());
    }
    co_return make_error(StatusCode::kUnavailable, "more than {} redirects", policy_.max_redirects);
  }

  Status check_host(const Url& url) const {
    if (policy_.allows_host(url.host)) return ok_status();
    return invalid_argument("host '{}' is not allowed", url.host);
  }

  awaitable<StatusOr<Hop>> visit(Job& job, const Url& url) {
    if (const Status allowed = check_host(url); !allowed.ok()) co_return allowed;
    const Status connected = co_await connect(job, url);
    if (!connected.ok()) co_return connected;
    if (!url.tls) co_return co_await ask(job.socket, url);

    asio::ssl::stream<tcp::socket&> stream(job.socket, tls_);
    // SSL_set_tlsext_host_name, a macro with a cast.
    if (SSL_ctrl(stream.native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                 const_cast<char*>(url.host.c_str())) != 1) {
      co_return make_error(StatusCode::kInternal, "TLS: the host's name is not taken");
    }
    error_code ignored;
    stream.set_verify_callback(asio::ssl::host_name_verification(url.host), ignored);
    const auto [error] = co_await stream.async_handshake(asio::ssl::stream_base::client, kAsTuple);
    if (error) co_return unavailable("TLS", error);
    co_return co_await ask(stream, url);
  }

  // To the first address that is allowed and answers.
  awaitable<Status> connect(Job& job, const Url& url) {
    tcp::resolver resolver(*io_);
    const auto [error, found] = co_await resolver.async_resolve(url.host, url.port, kAsTuple);
    if (error) {
      co_return make_error(StatusCode::kNotFound, "resolving '{}': {}", url.host, error.message());
    }
    Status last = make_error(StatusCode::kNotFound, "'{}' has no address", url.host);
    for (const auto& entry : found) {
      if (job.is_over()) co_return make_error(StatusCode::kUnavailable, "no answer in time");
      const tcp::endpoint endpoint = entry.endpoint();
      if (const Status allowed = check_address(endpoint); !allowed.ok()) {
        // A reason from an address that was tried says more.
        if (last.code() == StatusCode::kNotFound) last = allowed;
        continue;
      }
      job.close();
      const auto [connect_error] = co_await job.socket.async_connect(endpoint, kAsTuple);
      if (connect_error) {
        last = unavailable("connecting", connect_error);
        continue;
      }
      error_code remote_error;
      const tcp::endpoint remote = job.socket.remote_endpoint(remote_error);
      if (remote_error) {
        last = unavailable("connecting", remote_error);
        continue;
      }
      last = check_address(remote);
      if (last.ok()) co_return last;
      job.close();
    }
    co_return last;
  }

  Status check_address(const tcp::endpoint& endpoint) const {
    const std::string address = endpoint.address().to_string();
    if (policy_.allows_address(address)) return ok_status();
    return make_error(StatusCode::kNotFound, "the address {} is not allowed", address);
  }

  template <typename Stream>
  awaitable<StatusOr<Hop>> ask(Stream& stream, const Url& url) {
    const std::string request = fmt::format(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: gapless\r\nAccept: image/*\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n\r\n",
        url.target, url.host_header());
    const auto [write_error, written] =
        co_await asio::async_write(stream, asio::buffer(request), kAsTuple);
    if (write_error) co_return unavailable("sending", write_error);
    boost::beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.header_limit(kMaxResponseHeadBytes);
    parser.body_limit(policy_.max_bytes);
    const auto [head_error, head_bytes] =
        co_await http::async_read_header(stream, buffer, parser, kAsTuple);
    if (head_error) co_return read_error(head_error);
    const unsigned status = parser.get().result_int();
    if (is_redirect(status)) {
      const StatusOr<Url> next =
          resolve_redirect(url, std::string(parser.get()[http::field::location]));
      if (!next.ok()) co_return next.status();
      co_return Hop(*next);
    }
    if (status != 200) co_return make_error(StatusCode::kUnavailable, "status {}", status);
    const auto [body_error, body_bytes] =
        co_await http::async_read(stream, buffer, parser, kAsTuple);
    if (body_error) co_return read_error(body_error);
    co_return Hop(std::move(parser.get().body()));
  }

  Status read_error(const error_code& error) const {
    if (error != http::error::body_limit) return unavailable("reading", error);
    return make_error(StatusCode::kResourceExhausted, "more than {} bytes", policy_.max_bytes);
  }

  const FetchPolicy policy_;
  std::unique_ptr<asio::io_context> io_;  // none once stopped
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::ssl::context tls_;
  std::atomic<int> num_running_{0};
  std::thread thread_;
};

StatusOr<std::unique_ptr<UrlFetcher>> UrlFetcher::create(FetchPolicy policy) {
  auto impl = std::make_unique<Impl>(std::move(policy));
  GAPLESS_RETURN_IF_ERROR(impl->prepare());
  return std::unique_ptr<UrlFetcher>(new UrlFetcher(std::move(impl)));
}

UrlFetcher::UrlFetcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UrlFetcher::~UrlFetcher() {
  stop();
}

void UrlFetcher::fetch(std::string_view url, Done done) {
  impl_->fetch(std::string(url), std::move(done));
}

Status UrlFetcher::check(std::string_view url) const {
  return impl_->check(url);
}

void UrlFetcher::stop() {
  impl_->stop();
}

}  // namespace gapless
