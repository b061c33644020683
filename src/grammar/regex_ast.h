// Regular expressions as trees, and the parser for the dialect that JSON Schema uses (ECMA-262).
//
// Only what is regular: no backreferences, no lookaround. Anchors may stand where a match begins or
// ends, which is where they say something.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/code_points.h"

namespace gapless {

struct Regex;
using RegexPtr = std::shared_ptr<const Regex>;

struct Regex {
  enum class Kind { kSet, kConcat, kAlternate, kRepeat, kBegin, kEnd };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kConcat;
  CodePointSet set;               // kSet
  std::vector<RegexPtr> parts;    // kConcat (empty: the empty string), kAlternate; kRepeat: one
  int min = 0, max = kUnbounded;  // kRepeat
};

RegexPtr regex_set(CodePointSet set);
RegexPtr regex_literal(std::string_view utf8);
RegexPtr regex_concat(std::vector<RegexPtr> parts);
RegexPtr regex_alternate(std::vector<RegexPtr> parts);
RegexPtr regex_repeat(RegexPtr part, int min, int max);
// Any string at all.
RegexPtr regex_anything();

// The strings that the whole pattern matches. InvalidArgument: not a pattern, or one that no automaton
// holds; the message names the construct and its offset.
StatusOr<RegexPtr> parse_regex(std::string_view pattern);
// The strings in which the pattern is found somewhere, as JSON Schema's "pattern" means it.
StatusOr<RegexPtr> parse_search_regex(std::string_view pattern);

}  // namespace gapless
