// Errors that the world can cause: files, requests, devices. Our own bugs go to check.h instead.
//
// A Status is cheap to move, says what happened in one line that names the thing it happened to
// ("models/x.safetensors: tensor 'model.text.wte' is missing"), and must not be dropped.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace gapless {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's input is wrong; trying again will not help
  kNotFound,           // a named thing is not there
  kResourceExhausted,  // a bound of limits.h or a queue is full; may work later
  kUnavailable,        // the device or the backend is not there
  kCancelled,          // somebody asked for it to stop
  kDeviceError,        // a device call failed; the message names the call
  kDataLoss,           // a file is truncated or corrupt
  kInternal,           // something that should not happen, kept from stopping the process
};

std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    GAPLESS_CHECK(code != StatusCode::kOk);
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The field of a request that is at fault, by the name that its sender knows; empty: none.
  const std::string& field() const { return field_; }
  // The same error, which is that field's fault unless it is known to be another's.
  Status with_field(std::string_view field) const;

  // "invalid argument: max_tokens must be at least 1"
  std::string to_string() const;

  // The same error with "context: " put before its message; OK stays OK.
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string field_;
};

inline Status ok_status() {
  return Status();
}

template <typename... Args>
Status make_error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// "max_tokens must be at least 1": the message begins with the field.
template <typename... Args>
Status invalid_field(std::string_view field, fmt::format_string<Args...> format, Args&&... args) {
  return invalid_argument("{} {}", field, fmt::format(format, std::forward<Args>(args)...))
      .with_field(field);
}

template <typename... Args>
Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kDataLoss, format, std::forward<Args>(args)...);
}

// Either a value or the reason why there is none.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) { GAPLESS_CHECK(!status_.ok()); }
  StatusOr(T value) : value_(std::move(value)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  const T& value() const& {
    GAPLESS_CHECK_MSG(ok(), status_.to_string());
    return *value_;
  }
  T& value() & {
    GAPLESS_CHECK_MSG(ok(), status_.to_string());
    return *value_;
  }
  // By value, so that `for (auto x : f().value())` does not dangle.
  T value() && {
    GAPLESS_CHECK_MSG(ok(), status_.to_string());
    return std::move(*value_);
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace gapless

#define GAPLESS_CONCAT_INNER_(a, b) a##b
#define GAPLESS_CONCAT_(a, b) GAPLESS_CONCAT_INNER_(a, b)

// Returns from the enclosing function when `expression` is not OK.
#define GAPLESS_RETURN_IF_ERROR(expression)                                      \
  do {                                                                           \
    if (::gapless::Status gapless_status_ = (expression); !gapless_status_.ok()) \
      return gapless_status_;                                                    \
  } while (false)

// GAPLESS_ASSIGN_OR_RETURN(auto bytes, read_file(path));
#define GAPLESS_ASSIGN_OR_RETURN(declaration, expression)                                    \
  GAPLESS_ASSIGN_OR_RETURN_IMPL_(GAPLESS_CONCAT_(gapless_status_or_, __LINE__), declaration, \
                                 expression)
#define GAPLESS_ASSIGN_OR_RETURN_IMPL_(temporary, declaration, expression) \
  auto temporary = (expression);                                           \
  if (!temporary.ok()) return temporary.status();                          \
  declaration = std::move(temporary).value()
