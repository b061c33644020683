#include "server/json_body.h"

#include <boost/json/stream_parser.hpp>
#include <cmath>

#include "base/limits.h"

namespace gapless {

namespace json = boost::json;

StatusOr<json::object> parse_json_body(std::string_view body) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::stream_parser parser({}, options);
  boost::system::error_code error;
  const std::size_t used = parser.write_some(body.data(), body.size(), error);
  if (!error && used < body.size()) error = json::error::extra_data;
  if (!error) parser.finish(error);
  if (error) {
    return invalid_argument("the body is not valid JSON near byte {}: {}", used, error.message());
  }
  json::value value = parser.release();
  if (!value.is_object()) return invalid_argument("the body must be a JSON object");
  return std::move(value.get_object());
}

const json::value* find_field(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

StatusOr<std::optional<std::string>> optional_string(const json::object& object,
                                                     std::string_view name) {
  const json::value* value = find_field(object, name);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return invalid_field(name, "must be a string");
  return std::optional<std::string>(value->get_string());
}

StatusOr<bool> bool_or(const json::object& object, std::string_view name, bool fallback) {
  const json::value* value = find_field(object, name);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) return invalid_field(name, "must be true or false");
  return value->get_bool();
}

StatusOr<std::optional<std::int64_t>> optional_integer(const json::object& object,
                                                       std::string_view name) {
  const json::value* value = find_field(object, name);
  if (value == nullptr) return std::optional<std::int64_t>();
  if (!value->is_int64()) return invalid_field(name, "must be an integer");
  return std::optional<std::int64_t>(value->get_int64());
}

StatusOr<std::optional<double>> optional_number(const json::object& object, std::string_view name) {
  const json::value* value = find_field(object, name);
  if (value == nullptr) return std::optional<double>();
  double number = 0;
  if (value->is_double()) {
    number = value->get_double();
  } else if (value->is_int64()) {
    number = static_cast<double>(value->get_int64());
  } else if (value->is_uint64()) {
    number = static_cast<double>(value->get_uint64());
  } else {
    return invalid_field(name, "must be a number");
  }
  if (!std::isfinite(number)) return invalid_field(name, "must be finite");
  return std::optional<double>(number);
}

}  // namespace gapless
