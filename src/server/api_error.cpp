#include "server/api_error.h"

#include <boost/json/object.hpp>

#include "base/json.h"
#include "base/limits.h"
#include "server/inference_service.h"

namespace gapless {
namespace {

boost::json::object error_fields(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? boost::json::value(nullptr) : boost::json::value(text);
  };
  return {{"message", error.message},
          {"type", error.type()},
          {"param", or_null(error.param)},
          {"code", or_null(error.code)}};
}

ApiError make_api_error(int status, const Status& cause, std::string code) {
  ApiError error;
  error.status = status;
  error.message = cause.message();
  error.param = cause.field();
  error.code = std::move(code);
  return error;
}

}  // namespace

std::string_view ApiError::type() const {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

ErrorStyle error_style_of(std::string_view path) {
  return path.starts_with("/api/") ? ErrorStyle::kText : ErrorStyle::kObject;
}

std::string ApiError::json(ErrorStyle style) const {
  if (style == ErrorStyle::kText) return json_text(boost::json::object{{"error", message}});
  return json_text(boost::json::object{{"error", error_fields(*this)}});
}

std::string ApiError::error_object() const {
  return json_text(error_fields(*this));
}

ApiError error_of_submit(const Status& status) {
  if (status.code() != StatusCode::kResourceExhausted) return error_of_request(status);
  ApiError error = make_api_error(429, status, "queue_full");
  error.retry_after_s = kRetryAfterSeconds;
  return error;
}

ApiError error_of_request(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return make_api_error(400, status, "invalid_request");
    case StatusCode::kDataLoss:
      return make_api_error(400, status, "image_decode_failed");
    case StatusCode::kResourceExhausted:
      return make_api_error(400, status, "does_not_fit");
    case StatusCode::kNotFound:
      return make_api_error(404, status, "not_found");
    case StatusCode::kDeviceError:
      return make_api_error(500, status, "device_error");
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled: {
      ApiError error = make_api_error(503, status, "unavailable");
      error.retry_after_s = kRetryAfterSeconds;
      return error;
    }
    default:
      return make_api_error(500, status, "internal_error");
  }
}

ApiError model_not_found_error(const ServiceInfo& info, std::string_view name) {
  ApiError error;
  error.status = 404;
  error.message = fmt::format("model '{}' is not served here; '{}' is", name, info.model);
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

ApiError not_ready_error(std::string_view message) {
  ApiError error;
  error.status = 503;
  error.message = std::string(message);
  error.code = "not_ready";
  error.retry_after_s = kRetryAfterSeconds;
  return error;
}

HttpResponse error_response(const ApiError& error, ErrorStyle style) {
  HttpResponse response;
  response.status = error.status;
  response.body = error.json(style);
  if (error.retry_after_s > 0) {
    response.headers.add("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace gapless
