// Which subschemas of a document say the same.
#pragma once

#include <string>
#include <unordered_map>

#include "grammar/schema_spec.h"

namespace gapless {

// Maps a subschema to the first one met that has the same text but for titles, descriptions and other words that
// allow or forbid nothing. So two hundred plain strings are one.
class CanonicalSchemas {
 public:
  SchemaRef of(SchemaRef schema);

 private:
  std::unordered_map<SchemaRef, SchemaRef> known_;
  std::unordered_map<std::string, SchemaRef> by_text_;
};

}  // namespace gapless
