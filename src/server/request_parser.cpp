// The only file that knows Beast: its parser is fed by hand, its streams are not used.
#include "server/request_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

namespace gapless {

namespace http = boost::beast::http;

struct RequestParser::Impl {
  http::request_parser<http::string_body> parser;
};

RequestParser::RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<std::uint32_t>(max_header_bytes));
  impl_->parser.body_limit(max_body_bytes);
}

RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

void RequestParser::fail(int status, std::string error) {
  state_ = State::kFailed;
  error_status_ = status;
  error_ = std::move(error);
}

std::size_t RequestParser::feed(std::string_view bytes) {
  auto& parser = impl_->parser;
  boost::system::error_code error;
  const std::size_t used = parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (error && error != http::error::need_more) {
    if (error == http::error::header_limit) {
      fail(431, "the request's head is too large");
    } else if (error == http::error::body_limit) {
      fail(413, "the request's body is too large");
    } else if (error == http::error::bad_version) {
      fail(505, "HTTP/1.0 and HTTP/1.1 are spoken here");
    } else {
      fail(400, "not HTTP: " + error.message());
    }
    return used;
  }
  if (state_ == State::kHead && parser.is_header_done()) {
    state_ = State::kBody;
    check_head();
    if (state_ == State::kFailed) return used;
    parser.eager(true);
  }
  if (parser.is_done()) state_ = State::kDone;
  return used;
}

// What Beast lets pass and we do not: anything that a proxy in front may read in another way.
void RequestParser::check_head() {
  const auto& message = impl_->parser.get();
  request_.method = std::string(message.method_string());
  request_.target = std::string(message.target());
  request_.minor_version = static_cast<int>(message.version() % 10);
  request_.keep_alive = message.keep_alive();
  for (const auto& field : message) {
    request_.headers.add(std::string(field.name_string()), std::string(field.value()));
  }

  if (message.count(http::field::transfer_encoding) > 0 &&
      (message.count(http::field::transfer_encoding) > 1 ||
       !equals_ignoring_case(std::string_view(message[http::field::transfer_encoding]),
                             "chunked"))) {
    return fail(501, "the only transfer coding taken is chunked");
  }
  if (message.count(http::field::transfer_encoding) > 0 && request_.minor_version == 0) {
    return fail(400, "HTTP/1.0 has no transfer codings");
  }
  if (message.count(http::field::host) != 1 && request_.minor_version != 0) {
    return fail(400, "exactly one Host header is needed");
  }
  const std::string_view coding = request_.headers.find("Content-Encoding");
  if (!coding.empty() && !equals_ignoring_case(coding, "identity")) {
    return fail(415, "a body must not be compressed");
  }
  const std::string_view expect = request_.headers.find("Expect");
  if (!expect.empty() && !equals_ignoring_case(expect, "100-continue")) {
    return fail(417, "the only expectation known is 100-continue");
  }

  const std::string_view target = request_.target;
  const std::size_t question = target.find('?');
  if (target.empty() || (target[0] != '/' && target != "*")) {
    return fail(400, "the target must be a path");
  }
  if (!percent_decode(target.substr(0, question), request_.path)) {
    return fail(400, "the path is not encoded correctly");
  }
  if (question != std::string_view::npos) request_.query = target.substr(question + 1);
}

bool RequestParser::expects_continue() const {
  return request_.minor_version >= 1 && request_.headers.has("Expect");
}

std::size_t RequestParser::body_bytes_so_far() const {
  return impl_->parser.get().body().size();
}

HttpRequest RequestParser::take() {
  request_.body = std::move(impl_->parser.get().body());
  return std::move(request_);
}

}  // namespace gapless
