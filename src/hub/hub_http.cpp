#include "hub/hub_http.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <vector>

#include "hub/hub_limits.h"

namespace gapless {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

Status unavailable(const Url& url, std::string_view what, const error_code& error) {
  return make_error(StatusCode::kUnavailable, "{}: {}: {}", url.host_header(), what,
                    error.message());
}

bool is_same_origin(const Url& a, const Url& b) {
  return a.tls == b.tls && a.host == b.host && a.port == b.port;
}

std::string plain_etag(std::string_view text) {
  if (text.starts_with("W/")) text.remove_prefix(2);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

template <typename Fields>
HubAnswer answer_of(const Url& url, unsigned status, const Fields& fields) {
  const auto field = [&fields](std::string_view name) { return std::string(fields[name]); };
  HubAnswer answer;
  answer.status = status;
  answer.url = url;
  answer.location = field("Location");
  answer.commit = field("X-Repo-Commit");
  answer.etag = plain_etag(field("ETag"));
  answer.linked_etag = plain_etag(field("X-Linked-Etag"));
  answer.linked_size = field("X-Linked-Size");
  answer.length = field("Content-Length");
  answer.range = field("Content-Range");
  answer.retry_after = field("Retry-After");
  answer.error = field("X-Error-Code");
  answer.explanation = field("X-Error-Message");
  return answer;
}

}  // namespace

bool HubAnswer::is_redirect() const {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

class HubHttp::Impl {
 public:
  explicit Impl(const HubSettings& settings)
      : endpoint_(settings.endpoint),
        token_(settings.token),
        stall_(settings.patience.stall),
        tls_(asio::ssl::context::tls_client) {}

  Status prepare() {
    error_code error;
    tls_.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
    if (!error) tls_.set_verify_mode(asio::ssl::verify_peer, error);
    if (!error) tls_.set_default_verify_paths(error);  // and SSL_CERT_FILE, SSL_CERT_DIR
    if (error) return invalid_argument("the system's certificates: {}", error.message());
    return ok_status();
  }

  const Url& endpoint() const { return endpoint_; }

  // What one request is about. `on_head` says whether the body is wanted.
  struct Request {
    const char* method;
    ByteRange range;
    const std::function<Status(const HubAnswer&)>* on_head = nullptr;
    const HubSink* sink = nullptr;
  };

  // Follows redirects.
  StatusOr<HubAnswer> run(Url url, const Request& request) {
    for (int hop = 0; hop <= kMaxHubRedirects; ++hop) {
      GAPLESS_ASSIGN_OR_RETURN(HubAnswer answer, visit(url, request));
      if (!answer.is_redirect()) return answer;
      if (request.sink == nullptr && !answer.linked_etag.empty()) return answer;
      GAPLESS_ASSIGN_OR_RETURN(Url next, resolve_redirect(url, answer.location));
      if (url.tls && !next.tls) {
        return invalid_argument("{}: redirects from https to http", url.host_header());
      }
      url = std::move(next);
    }
    return invalid_argument("{}: more than {} redirects", url.host_header(), kMaxHubRedirects);
  }

 private:
  StatusOr<HubAnswer> visit(const Url& url, const Request& request) {
    asio::io_context io(1);
    std::optional<StatusOr<HubAnswer>> result;
    asio::co_spawn(
        io, [&]() -> awaitable<void> { result = co_await talk(io, url, request); },
        [](const std::exception_ptr& error) {
          if (error) std::rethrow_exception(error);
        });
    io.run();
    GAPLESS_CHECK(result.has_value());
    return *std::move(result);
  }

  awaitable<StatusOr<HubAnswer>> talk(asio::io_context& io, const Url& url,
                                      const Request& request) {
    tcp::resolver resolver(io);
    const auto [resolve_error, addresses] =
        co_await resolver.async_resolve(url.host, url.port, kAsTuple);
    if (resolve_error) co_return unavailable(url, "its name", resolve_error);
    beast::tcp_stream socket(io);
    socket.expires_after(stall_);
    const auto [connect_error, endpoint] = co_await socket.async_connect(addresses, kAsTuple);
    if (connect_error) co_return unavailable(url, "connecting", connect_error);
    if (!url.tls) co_return co_await ask(socket, socket, url, request);

    beast::ssl_stream<beast::tcp_stream&> stream(socket, tls_);
    // SSL_set_tlsext_host_name, a macro with a cast.
    if (SSL_ctrl(stream.native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                 const_cast<char*>(url.host.c_str())) != 1) {
      co_return make_error(StatusCode::kInternal, "TLS: the host's name is not taken");
    }
    error_code ignored;
    stream.set_verify_callback(asio::ssl::host_name_verification(url.host), ignored);
    const auto [tls_error] =
        co_await stream.async_handshake(asio::ssl::stream_base::client, kAsTuple);
    if (tls_error) co_return unavailable(url, "TLS", tls_error);
    co_return co_await ask(stream, socket, url, request);
  }

  std::string head_of(const Url& url, const Request& request) const {
    std::string text = fmt::format(
        "{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: gapless\r\nAccept: */*\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n",
        request.method, url.target, url.host_header());
    if (!token_.empty() && is_same_origin(url, endpoint_)) {
      text += fmt::format("Authorization: Bearer {}\r\n", token_);
    }
    if (request.range.end) {
      text += fmt::format("Range: bytes={}-{}\r\n", request.range.begin, *request.range.end - 1);
    } else if (request.range.begin > 0) {
      text += fmt::format("Range: bytes={}-\r\n", request.range.begin);
    }
    return text + "\r\n";
  }

  template <typename Stream>
  awaitable<StatusOr<HubAnswer>> ask(Stream& stream, beast::tcp_stream& socket, const Url& url,
                                     const Request& request) {
    const std::string text = head_of(url, request);
    socket.expires_after(stall_);
    const auto [write_error, written] =
        co_await asio::async_write(stream, asio::buffer(text), kAsTuple);
    if (write_error) co_return unavailable(url, "sending", write_error);
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.header_limit(kMaxHubResponseHeadBytes);
    parser.body_limit(boost::none);  // the sink's to judge
    parser.skip(request.sink == nullptr);
    const auto [head_error, head_bytes] =
        co_await http::async_read_header(stream, buffer, parser, kAsTuple);
    if (head_error) co_return unavailable(url, "reading", head_error);
    HubAnswer answer = answer_of(url, parser.get().result_int(), parser.get());
    if (answer.is_redirect() || request.sink == nullptr) co_return answer;
    if (const Status judged = (*request.on_head)(answer); !judged.ok()) co_return judged;
    const Status body = co_await read_body(stream, socket, url, buffer, parser, *request.sink);
    if (!body.ok()) co_return body;
    co_return answer;
  }

  template <typename Stream>
  awaitable<Status> read_body(Stream& stream, beast::tcp_stream& socket, const Url& url,
                              beast::flat_buffer& buffer,
                              http::response_parser<http::buffer_body>& parser,
                              const HubSink& sink) {
    std::vector<std::byte> piece(kHubReadBytes);
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = piece.data();
      body.size = piece.size();
      socket.expires_after(stall_);
      auto [error, count] = co_await http::async_read_some(stream, buffer, parser, kAsTuple);
      const std::size_t num_read = piece.size() - body.size;
      if (num_read > 0) {
        const Status taken = sink(std::span(piece).first(num_read));
        if (!taken.ok()) co_return taken;
      }
      if (error && error != http::error::need_buffer) co_return unavailable(url, "reading", error);
    }
    co_return ok_status();
  }

  const Url endpoint_;
  const std::string token_;
  const std::chrono::milliseconds stall_;
  asio::ssl::context tls_;
};

StatusOr<std::unique_ptr<HubHttp>> HubHttp::create(const HubSettings& settings) {
  auto impl = std::make_unique<Impl>(settings);
  GAPLESS_RETURN_IF_ERROR(impl->prepare());
  return std::unique_ptr<HubHttp>(new HubHttp(std::move(impl)));
}

HubHttp::HubHttp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HubHttp::~HubHttp() = default;

const Url& HubHttp::endpoint() const {
  return impl_->endpoint();
}

StatusOr<HubAnswer> HubHttp::head(const Url& url) {
  return impl_->run(url, {.method = "HEAD"});
}

Status HubHttp::get(const Url& url, const ByteRange& range,
                    const std::function<Status(const HubAnswer&)>& on_head, const HubSink& sink) {
  return impl_->run(url, {.method = "GET", .range = range, .on_head = &on_head, .sink = &sink})
      .status();
}

}  // namespace gapless
