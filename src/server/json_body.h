// The body of a request as a JSON object.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

// Strict JSON, valid UTF-8, at most kMaxJsonDepth deep, an object at the top.
StatusOr<boost::json::object> parse_json_body(std::string_view body);

// Fields of requests; null counts as absent. A wrong type is an error that names the field.
StatusOr<std::optional<std::string>> optional_string(const boost::json::object& object,
                                                     std::string_view name);
StatusOr<bool> bool_or(const boost::json::object& object, std::string_view name, bool fallback);
StatusOr<std::optional<std::int64_t>> optional_integer(const boost::json::object& object,
                                                       std::string_view name);
StatusOr<std::optional<double>> optional_number(const boost::json::object& object,
                                                std::string_view name);
// nullptr when absent or null.
const boost::json::value* find_field(const boost::json::object& object, std::string_view name);

}  // namespace gapless
