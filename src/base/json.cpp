#include "base/json.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/stream_parser.hpp>
#include <charconv>
#include <cmath>

#include "base/limits.h"

namespace gapless {
namespace {

void append_number(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  char text[400];  // the longest, -5e-324, has 327
  const auto end = std::to_chars(text, text + sizeof(text), number, std::chars_format::fixed).ptr;
  const std::string_view decimals(text, static_cast<std::size_t>(end - text));
  out += decimals;
  if (decimals.find('.') == std::string_view::npos) out += ".0";
}

void append_json(std::string& out, const boost::json::value& value) {
  if (value.is_double()) return append_number(out, value.get_double());
  if (value.is_array()) {
    char separator = '[';
    for (const boost::json::value& item : value.get_array()) {
      out += separator;
      append_json(out, item);
      separator = ',';
    }
    out += value.get_array().empty() ? "[]" : "]";
    return;
  }
  if (value.is_object()) {
    char separator = '{';
    for (const auto& field : value.get_object()) {
      out += separator;
      out += boost::json::serialize(field.key());
      out += ':';
      append_json(out, field.value());
      separator = ',';
    }
    out += value.get_object().empty() ? "{}" : "}";
    return;
  }
  out += boost::json::serialize(value);
}

}  // namespace

std::string json_text(const boost::json::value& value) {
  std::string out;
  append_json(out, value);
  return out;
}

double short_double(float number) {
  if (!std::isfinite(number)) return static_cast<double>(number);
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof(text), number, std::chars_format::scientific).ptr;
  double read = 0;
  std::from_chars(text, end, read);
  return read;
}

StatusOr<boost::json::value> parse_json(std::string_view text, std::string_view name) {
  boost::json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  boost::json::stream_parser parser({}, options);
  boost::json::error_code error;
  const std::size_t used = parser.write_some(text.data(), text.size(), error);
  if (!error && used < text.size()) error = boost::json::error::extra_data;
  if (!error) parser.finish(error);
  if (error) return data_loss("{}: not valid JSON near byte {}: {}", name, used, error.message());
  return parser.release();
}

StatusOr<JsonObject> JsonObject::of(const boost::json::value& value, std::string_view name,
                                    std::string where) {
  if (!value.is_object()) {
    return invalid_argument("{}: {} must be a JSON object", name,
                            where.empty() ? "the document" : where);
  }
  return JsonObject(value.get_object(), std::string(name), std::move(where));
}

const boost::json::value* JsonObject::find(std::string_view key) const {
  const boost::json::value* value = object_->if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string JsonObject::path_to(std::string_view key) const {
  return where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key);
}

Status JsonObject::error(std::string_view key, std::string_view what) const {
  return invalid_argument("{}: {} must be {}", name_, path_to(key), what);
}

StatusOr<JsonObject> JsonObject::object(std::string_view key) const {
  const boost::json::value* value = find(key);
  if (value == nullptr || !value->is_object()) return error(key, "an object");
  return JsonObject(value->get_object(), name_, path_to(key));
}

StatusOr<std::string_view> JsonObject::string(std::string_view key) const {
  const boost::json::value* value = find(key);
  if (value == nullptr || !value->is_string()) return error(key, "a string");
  return std::string_view(value->get_string());
}

StatusOr<const boost::json::array*> JsonObject::array(std::string_view key) const {
  const boost::json::value* value = find(key);
  if (value == nullptr || !value->is_array()) return error(key, "an array");
  return &value->get_array();
}

StatusOr<std::int64_t> JsonObject::integer(std::string_view key, std::int64_t min,
                                           std::int64_t max) const {
  const boost::json::value* value = find(key);
  // A number above the signed range is held as uint64: out of range, not of another type.
  if (value == nullptr || !(value->is_int64() || value->is_uint64())) {
    return error(key, "an integer");
  }
  if (value->is_uint64() || value->get_int64() < min || value->get_int64() > max) {
    return error(key, fmt::format("between {} and {}", min, max));
  }
  return value->get_int64();
}

StatusOr<std::string_view> JsonObject::string_or(std::string_view key,
                                                 std::string_view fallback) const {
  if (find(key) == nullptr) return fallback;
  return string(key);
}

StatusOr<std::int64_t> JsonObject::integer_or(std::string_view key, std::int64_t fallback,
                                              std::int64_t min, std::int64_t max) const {
  if (find(key) == nullptr) return fallback;
  return integer(key, min, max);
}

StatusOr<bool> JsonObject::boolean_or(std::string_view key, bool fallback) const {
  const boost::json::value* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) return error(key, "true or false");
  return value->get_bool();
}

StatusOr<double> JsonObject::number_or(std::string_view key, double fallback) const {
  const boost::json::value* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) return error(key, "a number");
  return value->to_number<double>();
}

}  // namespace gapless
