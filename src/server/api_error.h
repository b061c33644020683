// Errors as clients read them: {"error": {"message", "type", "param", "code"}} with the right
// status; below /api/, where Ollama's clients ask, {"error": "message"}.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/exchange.h"

namespace gapless {

struct ServiceInfo;

enum class ErrorStyle { kObject, kText };
ErrorStyle error_style_of(std::string_view path);

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;      // the field at fault; empty: null
  std::string code;       // a word for programs; empty: null
  int retry_after_s = 0;  // 0: no Retry-After

  // "invalid_request_error", "authentication_error", "rate_limit_error", ... from the status.
  std::string_view type() const;
  std::string json(ErrorStyle style = ErrorStyle::kObject) const;
  // The value of "error" alone, for the last event of a stream.
  std::string error_object() const;
};

// What Engine::submit refuses: ResourceExhausted means a full queue (429).
ApiError error_of_submit(const Status& status);
// What a request ends with later: ResourceExhausted means that it never fits (400), data loss that
// the picture is corrupt (400).
ApiError error_of_request(const Status& status);

ApiError model_not_found_error(const ServiceInfo& info, std::string_view name);
ApiError not_ready_error(std::string_view message);

HttpResponse error_response(const ApiError& error, ErrorStyle style = ErrorStyle::kObject);

}  // namespace gapless
