// What the handlers of both APIs have in common.
#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/exchange.h"
#include "server/server_state.h"
#include "skill/response_sink.h"

namespace gapless {

void respond_json(Exchange& exchange, const boost::json::value& value);
void respond_error(Exchange& exchange, const ApiError& error);

// The service, or nullptr after answering 503.
InferenceService* ready_service(ServerState& state, Exchange& exchange);

// Whether this field of a body, where it is there, names our model; false after answering 400 or 404.
bool names_our_model(const ServiceInfo& info, Exchange& exchange, const boost::json::object& body,
                     std::string_view field);

// The body as a JSON object whose "model" is ours, or nothing after answering 400 or 404. Frees the
// body.
std::optional<boost::json::object> read_json_request(const ServiceInfo& info, Exchange& exchange);

// Head of an answer in pieces; of server-sent events unless told otherwise.
HttpResponse stream_head(std::string content_type = "text/event-stream");

// Counts what a sink sees, and writes it into the access log. Used by one thread at a time.
class RequestMeter {
 public:
  RequestMeter(ServerState& state, std::shared_ptr<Exchange> exchange);
  void on_text(int num_tokens);
  void on_done(const SkillResult& result);
  void on_error(const Status& status);

 private:
  ServerState& state_;
  const std::shared_ptr<Exchange> exchange_;
  const std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point last_text_;
  int num_tokens_ = 0;
};

}  // namespace gapless
