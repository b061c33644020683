#include "server/api_support.h"

#include <fmt/format.h>

#include "base/json.h"
#include "server/json_body.h"

namespace gapless {

using Clock = std::chrono::steady_clock;

void respond_json(Exchange& exchange, const boost::json::value& value) {
  HttpResponse response;
  response.body = json_text(value);
  exchange.respond(std::move(response));
}

void respond_error(Exchange& exchange, const ApiError& error) {
  exchange.respond(error_response(error, error_style_of(exchange.request().path)));
}

InferenceService* ready_service(ServerState& state, Exchange& exchange) {
  InferenceService* service = state.service();
  if (service == nullptr) {
    respond_error(exchange, not_ready_error("the model is loading"));
    return nullptr;
  }
  if (const Status health = service->health(); !health.ok()) {
    ApiError error = not_ready_error(health.message());
    error.code = "device_lost";
    respond_error(exchange, error);
    return nullptr;
  }
  return service;
}

bool names_our_model(const ServiceInfo& info, Exchange& exchange, const boost::json::object& body,
                     std::string_view field) {
  const StatusOr<std::optional<std::string>> name = optional_string(body, field);
  if (!name.ok()) {
    respond_error(exchange, error_of_request(name.status()));
  } else if (*name && !info.is_named(**name)) {
    respond_error(exchange, model_not_found_error(info, **name));
  } else {
    return true;
  }
  return false;
}

std::optional<boost::json::object> read_json_request(const ServiceInfo& info, Exchange& exchange) {
  const std::string body = std::move(exchange.request().body);
  StatusOr<boost::json::object> object = parse_json_body(body);
  if (!object.ok()) {
    ApiError error = error_of_request(object.status());
    error.code = "invalid_json";
    respond_error(exchange, error);
    return std::nullopt;
  }
  if (!names_our_model(info, exchange, *object, "model")) return std::nullopt;
  return std::move(object).value();
}

HttpResponse stream_head(std::string content_type) {
  HttpResponse head;
  head.content_type = std::move(content_type);
  head.headers.add("Cache-Control", "no-cache");
  // Proxies of the nginx kind must not collect what comes.
  head.headers.add("X-Accel-Buffering", "no");
  return head;
}

RequestMeter::RequestMeter(ServerState& state, std::shared_ptr<Exchange> exchange)
    : state_(state), exchange_(std::move(exchange)), started_(Clock::now()) {}

void RequestMeter::on_text(int num_tokens) {
  const Clock::time_point now = Clock::now();
  if (num_tokens_ > 0 && num_tokens > num_tokens_) {
    const double seconds = std::chrono::duration<double>(now - last_text_).count();
    state_.metrics().count_inter_token(seconds, num_tokens - num_tokens_);
  }
  num_tokens_ = num_tokens;
  last_text_ = now;
}

void RequestMeter::on_done(const SkillResult& result) {
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  state_.metrics().count_result(result, seconds);
  exchange_->annotate(fmt::format(
      " skill={} finish={} input_tokens={} output_tokens={} ttft_ms={:.2f}",
      skill_name(result.skill), finish_reason_name(result.finish_reason),
      result.metrics.input_tokens, result.metrics.output_tokens, result.metrics.ttft_ms));
}

void RequestMeter::on_error(const Status& status) {
  state_.metrics().count_failure(status);
  exchange_->annotate(fmt::format(" error=\"{}\"", status_code_name(status.code())));
}

}  // namespace gapless
