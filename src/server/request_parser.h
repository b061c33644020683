// HTTP/1.x requests from bytes, without a socket, so that it can be fuzzed.
//
// Feed it what has arrived; it says how much it used. What it did not use must be offered again
// with more after it. How the bytes are cut into pieces changes nothing, because lines (of the head,
// around chunks) are looked at only when they are complete.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace gapless {

class RequestParser {
 public:
  RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes);
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;
  RequestParser& operator=(RequestParser&&) noexcept;

  enum class State { kHead, kBody, kDone, kFailed };

  // Bytes used, all of them from the front. Stops behind the head and behind the request: feed
  // again for the body, never after kDone or kFailed. 0 and an unchanged state: more is needed.
  std::size_t feed(std::string_view bytes);

  // Instead of feeding bytes of a body whose length is known: room for its next ones, at most so many, and for none where
  // it is not. take_body() follows at once and says how many were put there, from the front.
  std::span<char> body_room(std::size_t most);
  void take_body(std::span<const char> room, std::size_t count);

  // Of a body whose length is known; 0 of others.
  std::size_t body_bytes_left() const {
    return body_part_ == BodyPart::kWhole ? num_body_left_ : 0;
  }

  State state() const { return state_; }

  // kFailed: the status and the reason to answer with. The connection cannot be used again.
  int error_status() const { return error_status_; }
  const std::string& error() const { return error_; }

  // From kBody on. The request without its body.
  const HttpRequest& head() const { return request_; }
  bool expects_continue() const;
  std::size_t body_bytes_so_far() const;

  // kDone; or kBody, for a request whose body is not wanted.
  HttpRequest take();

 private:
  // What comes next in the body.
  enum class BodyPart { kWhole, kChunkHead, kChunk, kChunkEnd, kTrailers };

  void fail(int status, std::string error);
  std::size_t feed_head(std::string_view bytes);
  std::size_t feed_body(std::string_view bytes);
  // Bytes up to the end of the first line that was not seen whole yet; 0: more is needed, or failed.
  std::size_t next_line_end(std::string_view bytes);
  // Hands whole lines of the head to Beast. Returns how many bytes it used.
  std::size_t put(std::string_view lines);
  void check_head();
  void check_target();
  void begin_body();
  void take_line_of_body(std::string_view line);
  void begin_chunk(std::string_view line);

  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::size_t max_header_bytes_;
  std::size_t max_body_bytes_;
  std::size_t line_bytes_used_ = 0;  // of the head; then of a chunk's head; then of the trailers
  std::size_t num_seen_ = 0;         // bytes that were looked at, but not used
  BodyPart body_part_ = BodyPart::kWhole;
  std::size_t num_body_left_ = 0;  // of the body or chunk
  State state_ = State::kHead;
  int error_status_ = 0;
  std::string error_;
  HttpRequest request_;
};

}  // namespace gapless
