// Grammars of JSON: a schema's values, and any JSON object.
#pragma once

#include <boost/json/value.hpp>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"

namespace gapless {

// Exactly the values of a JSON Schema (draft 2020-12 or 7), each in at least one spelling: between tokens and
// before the first one there may be kMaxWhitespaceRun bytes of whitespace, behind the last one none; members come in any order and each declared name at most once, numbers with bounds
// have no exponent, and strings escape what they must (" \ and control characters; any character where the
// schema does not look at it).
//
// InvalidArgument: not a schema, one without values, or one that no automaton of ours holds; the message names
// the keyword and its place. ResourceExhausted: past a bound of grammar_limits.h.
StatusOr<Grammar> compile_json_schema(const boost::json::value& schema);
StatusOr<Grammar> compile_json_schema(std::string_view schema_text);

// {"type": "object"}
StatusOr<Grammar> compile_any_json_object();

}  // namespace gapless
