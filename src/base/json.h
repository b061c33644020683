// JSON as this project writes and reads it: numbers in plain decimals; what comes from a file with a
// bounded depth and errors that name the file and the field.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gapless {

// Strict JSON, UTF-8, at most kMaxJsonDepth deep. `name` (a path) begins the error. The caller
// bounds the size.
StatusOr<boost::json::value> parse_json(std::string_view text, std::string_view name);

// The value as text, without spaces. Unlike Boost's own writer numbers are plain decimals, the shortest
// that read back as the same double: 0.312055, not 3.12055E-1; a whole one has a point too (2.0), so
// that a number keeps its type. Values must be finite, as all that is parsed is; others become null.
std::string json_text(const boost::json::value& value);

// The double that json_text prints as short as the float is: 0.1, not 0.10000000149011612.
double short_double(float number);

// A view of one object inside a parsed document that remembers where it is, for error messages such
// as "config.json: text.n_heads must be an integer". A field that is null counts as absent. The
// document must outlive the view and everything got from it.
class JsonObject {
 public:
  // `name` is the file; `where` the path to this object ("" at the root).
  static StatusOr<JsonObject> of(const boost::json::value& value, std::string_view name,
                                 std::string where = "");

  const std::string& name() const { return name_; }
  const boost::json::object& fields() const { return *object_; }

  // nullptr when absent or null.
  const boost::json::value* find(std::string_view key) const;

  StatusOr<JsonObject> object(std::string_view key) const;
  StatusOr<std::string_view> string(std::string_view key) const;
  StatusOr<const boost::json::array*> array(std::string_view key) const;
  StatusOr<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max) const;

  // The same with a default for an absent field.
  StatusOr<std::string_view> string_or(std::string_view key, std::string_view fallback) const;
  StatusOr<std::int64_t> integer_or(std::string_view key, std::int64_t fallback, std::int64_t min,
                                    std::int64_t max) const;
  StatusOr<bool> boolean_or(std::string_view key, bool fallback) const;
  StatusOr<double> number_or(std::string_view key, double fallback) const;

  // "FILE: WHERE.key must be WHAT"
  Status error(std::string_view key, std::string_view what) const;

 private:
  JsonObject(const boost::json::object& object, std::string name, std::string where)
      : object_(&object), name_(std::move(name)), where_(std::move(where)) {}
  std::string path_to(std::string_view key) const;

  const boost::json::object* object_;
  std::string name_;
  std::string where_;
};

}  // namespace gapless
