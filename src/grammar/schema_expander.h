// From a JSON Schema to specs without choices.
//
// References are followed, anyOf and oneOf multiplied out, allOf merged, "not" turned into what it allows. What
// cannot be held exactly is refused: the message names the keyword and its place ("#/properties/tags:
// uniqueItems is not supported").
#pragma once

#include <boost/json/value.hpp>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/schema_spec.h"

namespace gapless {

class SchemaExpander {
 public:
  // `schema` outlives this. The draft is that of "$schema" (2020-12 without it).
  explicit SchemaExpander(const boost::json::value& schema);

  // The ways to satisfy the schema (nullptr: anything). Kept: asking again is cheap. The list lives as
  // long as this does.
  StatusOr<const std::vector<SchemaSpec>*> expand(SchemaRef schema);
  // The ways to satisfy all of these at once.
  StatusOr<std::vector<SchemaSpec>> expand_all(const std::vector<SchemaRef>& schemas);

  SchemaRef root() const { return &root_; }
  // An error that came up at this schema, with its place, unless the message begins with one.
  Status with_place(const Status& error, SchemaRef schema) const;

 private:
  using Specs = std::vector<SchemaSpec>;

  StatusOr<Specs> expand_now(SchemaRef schema);
  // The keyword's value where the draft has it.
  const boost::json::value* keyword(const boost::json::object& object, std::string_view name) const;
  StatusOr<Specs> expand_keywords(SchemaRef schema, const boost::json::object& object);
  StatusOr<Specs> negate(SchemaRef schema);
  StatusOr<Specs> negate_now(SchemaRef schema);
  StatusOr<Specs> negate_keyword(SchemaRef schema, std::string_view keyword,
                                 const boost::json::value& value);
  StatusOr<Specs> one_of(SchemaRef schema, const Specs& base, const boost::json::array& branches);
  StatusOr<Specs> dependencies(SchemaRef schema, const boost::json::object& list);
  StatusOr<Specs> enumerated(SchemaRef schema, const boost::json::value* values, std::size_t count);

  StatusOr<SchemaSpec> own_spec(SchemaRef schema, const boost::json::object& object);
  Status read_types(SchemaRef schema, const boost::json::value& value, SchemaSpec& spec) const;
  Status read_number(SchemaRef schema, std::string_view keyword, const boost::json::value& value,
                     SchemaSpec& spec) const;
  Status read_string(SchemaRef schema, std::string_view keyword, const boost::json::value& value,
                     SchemaSpec& spec);
  // Leaves `count` where the keyword is not there.
  Status read_count(SchemaRef schema, const boost::json::object& object, const char* keyword,
                    int& count) const;
  Status read_object(SchemaRef schema, const boost::json::object& object, SchemaSpec& spec);
  Status read_array(SchemaRef schema, const boost::json::object& object, SchemaSpec& spec) const;

  StatusOr<Specs> both(const Specs& a, const Specs& b, SchemaRef at) const;
  StatusOr<bool> disjoint(const SchemaSpec& a, const SchemaSpec& b, int depth);
  StatusOr<bool> disjoint_objects(const SchemaSpec& a, const SchemaSpec& b, int depth);
  StatusOr<bool> disjoint_all(const Specs& a, const Specs& b, int depth);

  StatusOr<SchemaRef> resolve(SchemaRef from, std::string_view reference) const;
  SchemaRef made(boost::json::value schema);  // a schema of our own
  void note_ids(SchemaRef schema) const;
  Status refuse(SchemaRef schema, std::string_view keyword, std::string_view why) const;
  // Of strings in which it is found; the same text is the same pattern.
  StatusOr<StringPatternPtr> search_pattern(SchemaRef schema, std::string_view keyword,
                                            std::string_view text);
  std::string place_of(SchemaRef schema) const;

  const boost::json::value& root_;
  int draft_ = 2020;  // 3, 4, 6, 7, 2019 or 2020: a keyword that came later says nothing
  mutable bool ids_are_noted_ = false;
  mutable std::map<std::string, SchemaRef, std::less<>> by_id_;  // $id, $anchor
  std::deque<boost::json::value> made_;
  std::map<std::string, StringPatternPtr, std::less<>> patterns_;  // by their text
  std::map<SchemaRef, Specs> expanded_, negated_;
  std::vector<SchemaRef> expanding_, negating_;
};

// The schemas that a member of that name must satisfy under each clause; nothing: it may not be there.
std::optional<std::vector<SchemaRef>> member_schemas(const SchemaSpec& spec, std::string_view name);

}  // namespace gapless
