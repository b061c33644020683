// The only file that knows Beast, which parses heads; bodies are read here.
#include "server/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <charconv>
#include <system_error>

#include "base/check.h"

namespace gapless {

namespace http = boost::beast::http;

struct RequestParser::Impl {
  http::request_parser<http::empty_body> parser;
};

RequestParser::RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes)
    : impl_(std::make_unique<Impl>()),
      max_header_bytes_(max_header_bytes),
      max_body_bytes_(max_body_bytes) {
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
  return state_ == State::kHead ? feed_head(bytes) : feed_body(bytes);
}

// Beast's verdict on half a line depends on where the line was cut, so it gets whole lines only.
std::size_t RequestParser::feed_head(std::string_view bytes) {
  std::size_t used = 0;
  while (state_ == State::kHead) {
    const std::size_t end = next_line_end(bytes.substr(used));
    if (end == 0) break;
    const std::size_t taken = put(bytes.substr(used, end));
    if (state_ == State::kHead && line_bytes_used_ == 0 && taken == 0) {
      fail(400, "not HTTP: the request line is incomplete");
    }
    line_bytes_used_ += taken;
    num_seen_ -= taken;
    used += taken;
  }
  if (state_ != State::kHead) line_bytes_used_ = 0;
  return used;
}

std::size_t RequestParser::next_line_end(std::string_view bytes) {
  for (; num_seen_ < bytes.size(); ++num_seen_) {
    if (line_bytes_used_ + num_seen_ >= max_header_bytes_) {
      if (state_ == State::kHead) {
        fail(431, "the request's head is too large");
      } else {
        fail(400, "what stands around a chunk is too long");
      }
      return 0;
    }
    const char byte = bytes[num_seen_];
    const bool after_cr = num_seen_ > 0 && bytes[num_seen_ - 1] == '\r';
    // A stray carriage return is where two readers of one message begin to disagree.
    if (after_cr != (byte == '\n')) {
      fail(400, "not HTTP: a line must end with CR and LF");
      return 0;
    }
    const bool is_control = static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f;
    if (is_control && byte != '\t' && byte != '\r' && byte != '\n') {
      fail(400, "not HTTP: a control character outside of the body");
      return 0;
    }
    if (byte == '\n') return ++num_seen_;
  }
  return 0;
}

std::size_t RequestParser::put(std::string_view lines) {
  auto& parser = impl_->parser;
  boost::system::error_code error;
  const std::size_t used = parser.put(boost::asio::buffer(lines.data(), lines.size()), error);
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
  if (parser.is_header_done()) {
    check_head();
    if (state_ != State::kFailed) begin_body();
  }
  return used;
}

void RequestParser::begin_body() {
  const auto& parser = impl_->parser;
  state_ = parser.is_done() ? State::kDone : State::kBody;
  if (parser.chunked()) {
    body_part_ = BodyPart::kChunkHead;
  } else if (state_ == State::kBody) {
    num_body_left_ = static_cast<std::size_t>(parser.content_length().value());
  }
}

std::size_t RequestParser::feed_body(std::string_view bytes) {
  std::size_t used = 0;
  while (state_ == State::kBody && used < bytes.size()) {
    const std::string_view rest = bytes.substr(used);
    if (body_part_ == BodyPart::kWhole || body_part_ == BodyPart::kChunk) {
      // Not before: a request that is refused for its head gets no memory.
      if (body_part_ == BodyPart::kWhole)
        request_.body.reserve(request_.body.size() + num_body_left_);
      const std::string_view part = rest.substr(0, num_body_left_);
      request_.body += part;
      num_body_left_ -= part.size();
      used += part.size();
      if (num_body_left_ > 0) break;
      if (body_part_ == BodyPart::kWhole) state_ = State::kDone;
      body_part_ = BodyPart::kChunkEnd;
      continue;
    }
    const std::size_t end = next_line_end(rest);
    if (end == 0) break;
    line_bytes_used_ += end;
    num_seen_ = 0;
    used += end;
    take_line_of_body(rest.substr(0, end - 2));
  }
  return used;
}

std::span<char> RequestParser::body_room(std::size_t most) {
  if (state_ != State::kBody || body_part_ != BodyPart::kWhole) return {};
  const std::size_t there = request_.body.size();
  const std::size_t room = std::min(most, num_body_left_);
  request_.body.reserve(there + num_body_left_);
  request_.body.resize(there + room);
  return std::span(request_.body).subspan(there);
}

void RequestParser::take_body(std::span<const char> room, std::size_t count) {
  GAPLESS_CHECK(count <= room.size() && room.size() <= num_body_left_);
  request_.body.resize(request_.body.size() - room.size() + count);
  num_body_left_ -= count;
  if (num_body_left_ == 0) state_ = State::kDone;
}

void RequestParser::take_line_of_body(std::string_view line) {
  if (body_part_ == BodyPart::kChunkHead) return begin_chunk(line);
  if (body_part_ == BodyPart::kChunkEnd) {
    if (!line.empty()) return fail(400, "not HTTP: a chunk is longer than it says");
    line_bytes_used_ = 0;
    body_part_ = BodyPart::kChunkHead;
  } else if (line.empty()) {  // trailers are not looked at
    state_ = State::kDone;
  }
}

// The size in hexadecimal digits; extensions after it are not looked at.
void RequestParser::begin_chunk(std::string_view line) {
  const std::string_view digits = line.substr(0, line.find(';'));
  std::size_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
  if (error == std::errc::result_out_of_range) {
    return fail(413, "the request's body is too large");
  }
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return fail(400, "not HTTP: a chunk's size is no hexadecimal number");
  }
  if (size > max_body_bytes_ - request_.body.size()) {
    return fail(413, "the request's body is too large");
  }
  num_body_left_ = size;
  body_part_ = size == 0 ? BodyPart::kTrailers : BodyPart::kChunk;
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
  const std::size_t num_hosts = message.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && request_.minor_version != 0)) {
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
  check_target();
}

void RequestParser::check_target() {
  std::string_view target = request_.target;
  // What clients send to a proxy: "http://host/path". Such a client's Host says the same.
  constexpr std::string_view kScheme = "http://";
  if (equals_ignoring_case(target.substr(0, kScheme.size()), kScheme)) {
    target.remove_prefix(kScheme.size());
    const std::string_view host = target.substr(0, target.find_first_of("/?"));
    if (!equals_ignoring_case(host, request_.headers.find("Host"))) {
      return fail(400, "the target and the Host header name two hosts");
    }
    target.remove_prefix(host.size());
    if (target.empty()) target = "/";
  }
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
  return request_.body.size();
}

HttpRequest RequestParser::take() {
  return std::move(request_);
}

}  // namespace gapless
