// The values of JSON Schema's "format" that are held, as regular expressions over whole strings.
#pragma once

#include <optional>
#include <string_view>

namespace gapless {

struct StringFormat {
  std::string_view name;
  std::string_view
      pattern;         // of the whole string; empty: the standard names it, no automaton holds it
  int max_length = 0;  // in characters; 0: unlimited
};

// Nothing for a name that the standard does not have: such a format says nothing about validity.
std::optional<StringFormat> find_string_format(std::string_view name);

}  // namespace gapless
