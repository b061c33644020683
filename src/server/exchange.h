// One request and its response, between a handler and a connection.
//
// Threads: the request and the response's first call (respond or begin_stream) belong to one thread
// at a time; every function may be called from any thread, and none blocks. An exchange that is
// dropped without a response is answered with 500.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace gapless {

class Exchange {
 public:
  virtual ~Exchange() = default;

  // The handler may move the body out.
  virtual HttpRequest& request() = 0;

  // A header of the response, whichever way it goes. Before respond or begin_stream.
  virtual void add_header(std::string name, std::string value) = 0;

  // The whole answer. Calls after the first respond or begin_stream are ignored.
  virtual void respond(HttpResponse response) = 0;

  // An answer in pieces: the head (its body is not used), then write() any number of times, then
  // end_stream(). False from write: the client is gone or too slow, nothing will be sent any more.
  virtual void begin_stream(HttpResponse head) = 0;
  virtual bool write(std::string bytes) = 0;
  virtual void end_stream() = 0;

  // `abort` is called once, on the connection's thread, when the client has gone, does not read, or
  // has waited too long; at once if that has happened already; never after the response's end.
  virtual void on_abort(std::function<void()> abort) = 0;

  // More for the line in the access log: " key=value" pairs.
  virtual void annotate(std::string_view text) = 0;
};

}  // namespace gapless
