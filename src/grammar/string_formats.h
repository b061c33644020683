// The values of JSON Schema's "format" that are held, as regular expressions over whole strings.
#pragma once

#include <string_view>

#include "grammar/string_pattern.h"

namespace gapless {

struct StringFormat {
  std::string_view name;
  StringPatternPtr pattern;  // nullptr: the standard names it, no automaton holds it
  int max_length = 0;        // in characters; 0: unlimited
};

// nullptr for a name that the standard does not have: such a format says nothing about validity. A format's automaton is made when it
// is first asked for, and stays.
const StringFormat* find_string_format(std::string_view name);

}  // namespace gapless
