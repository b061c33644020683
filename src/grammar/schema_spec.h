// A schema without choices: what one way of satisfying it asks of a value, type by type.
//
// anyOf, allOf, oneOf, not, if and $ref are gone (schema_expander.h); a schema is a list of specs,
// and a value satisfies it when it satisfies one of them.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/byte_dfa.h"
#include "grammar/number_language.h"
#include "grammar/string_pattern.h"

namespace gapless {

// A subschema inside a document that outlives it; nullptr: anything.
using SchemaRef = const boost::json::value*;

enum TypeBits : std::uint8_t {
  kNullType = 1,
  kFalseType = 2,
  kTrueType = 4,
  kNumberType = 8,
  kStringType = 16,
  kObjectType = 32,
  kArrayType = 64,
  kAllTypes = 127,
};

inline constexpr int kNoLimit = -1;

// One schema's say about an object's members. additionalProperties looks at the names and patterns
// beside it alone, so clauses of several schemas stay apart.
struct ObjectClause {
  std::vector<std::pair<std::string_view, SchemaRef>> properties;  // names in their document
  std::vector<std::pair<StringPatternPtr, SchemaRef>> patterns;
  SchemaRef additional = nullptr;
  SchemaRef names = nullptr;  // propertyNames

  friend bool operator==(const ObjectClause&, const ObjectClause&) = default;
};

struct ArrayClause {
  std::vector<SchemaRef> prefix;
  SchemaRef items = nullptr;  // behind the prefix

  friend bool operator==(const ArrayClause&, const ArrayClause&) = default;
};

struct SchemaSpec {
  std::uint8_t types = kAllTypes;

  NumberBounds number;
  std::optional<std::vector<std::string>> number_texts;  // enum: only these
  std::vector<std::string> not_number_texts;

  std::vector<StringPatternPtr> patterns, not_patterns;  // of the whole string
  int min_length = 0, max_length = kNoLimit;             // in code points
  std::optional<std::set<std::string>> strings;          // enum: only these, UTF-8
  std::set<std::string> not_strings;

  std::vector<ObjectClause> objects;
  std::set<std::string> required, forbidden;
  int min_properties = 0, max_properties = kNoLimit;

  std::vector<ArrayClause> arrays;
  int min_items = 0, max_items = kNoLimit;

  friend bool operator==(const SchemaSpec&, const SchemaSpec&) = default;

  // Every value satisfies it.
  bool says_nothing() const;
};

// Both at once; nothing where no type is left.
std::optional<SchemaSpec> merge(const SchemaSpec& a, const SchemaSpec& b);

// The string values of the spec as UTF-8, label 1, without its length bounds where `bounded` is false.
StatusOr<ByteDfa> string_values(const SchemaSpec& spec, bool bounded);
// The texts of its numbers, label 1.
StatusOr<ByteDfa> number_texts(const SchemaSpec& spec);

// The texts in which an enum's number may stand.
std::vector<std::string> texts_of_number(const boost::json::value& number);

}  // namespace gapless
