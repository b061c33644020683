// HTTP/1.x requests from bytes, without a socket, so that it can be fuzzed.
//
// Feed it what has arrived; it says how much it used. What it did not use must be offered again
// with more behind it (a head is parsed in one piece).
#pragma once

#include <cstddef>
#include <memory>
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

  State state() const { return state_; }

  // kFailed: the status and the reason to answer with. The connection cannot be used again.
  int error_status() const { return error_status_; }
  const std::string& error() const { return error_; }

  // From kBody on.
  bool expects_continue() const;
  std::size_t body_bytes_so_far() const;

  // kDone.
  HttpRequest take();

 private:
  void fail(int status, std::string error);
  void check_head();

  struct Impl;
  std::unique_ptr<Impl> impl_;
  State state_ = State::kHead;
  int error_status_ = 0;
  std::string error_;
  HttpRequest request_;
};

}  // namespace gapless
