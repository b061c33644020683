#include "grammar/canonical_schema.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <string_view>

namespace gapless {
namespace {

namespace json = boost::json;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

void append_schema(const json::value& schema, std::string& out);

void append_list(const json::array& list, std::string& out) {
  for (const json::value& item : list) append_schema(item, out.append(","));
}

void append_keyword(std::string_view keyword, const json::value& value, std::string& out) {
  if (is_one_of(keyword, {"title", "description", "default", "examples", "example", "$comment",
                          "$defs", "definitions", "deprecated", "readOnly", "writeOnly"})) {
    return;
  }
  out.append("\"").append(keyword).append("\":");
  if (is_one_of(keyword, {"properties", "patternProperties", "dependencies"}) &&
      value.is_object()) {
    for (const auto& member : value.get_object()) {
      out.append("(").append(json::serialize(member.key())).append(")");
      append_schema(member.value(), out);
    }
  } else if (is_one_of(keyword, {"items", "additionalProperties", "additionalItems", "not", "if",
                                 "then", "else", "propertyNames"}) &&
             !value.is_array()) {
    append_schema(value, out);
  } else if (is_one_of(keyword, {"allOf", "anyOf", "oneOf", "prefixItems", "items"}) &&
             value.is_array()) {
    append_list(value.get_array(), out);
  } else {
    out += json::serialize(value);
  }
  out.append(";");
}

void append_schema(const json::value& schema, std::string& out) {
  const auto* object = schema.if_object();
  if (object == nullptr) {
    out += json::serialize(schema);
    return;
  }
  out.append("{");
  for (const auto& member : *object) append_keyword(member.key(), member.value(), out);
  out.append("}");
}

}  // namespace

SchemaRef CanonicalSchemas::of(SchemaRef schema) {
  if (schema == nullptr) return nullptr;
  const auto [at, is_new] = known_.emplace(schema, schema);
  if (!is_new) return at->second;
  std::string text;
  append_schema(*schema, text);
  if (text == "{}" || text == "true") return at->second = nullptr;
  return at->second = by_text_.emplace(std::move(text), schema).first->second;
}

}  // namespace gapless
