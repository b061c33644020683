// Cuts text into the words that byte-pair merging never joins.
//
// Follows Hugging Face's pre_tokenizer: any number of Split (or Digits) steps, then ByteLevel.
// Regular expressions run on PCRE2 (just-in-time compiled, UTF and UCP). Known differences from
// the original engine (Oniguruma), found by comparing every code point: U+180E counts as a space,
// and letters and digits are those of PCRE2's version of Unicode (14 in PCRE2 10.42). Immutable
// after building; any thread may call split().
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex.h"

namespace gapless {

class PreTokenizer {
 public:
  enum class OnMatch {
    kIsolate,  // a match is a word of its own
    kRemove,   // matches are dropped; the text between them stays
  };

  // Adds a step before ByteLevel. `literal`: the pattern is a plain string. `invert`: what lies
  // between the matches counts as the match.
  Status add_split(std::string_view pattern, bool literal, OnMatch on_match, bool invert);

  // ByteLevel. `add_prefix_space`: a word that does not begin with a space gets one. `use_regex`:
  // words are cut once more, by GPT-2's pattern.
  Status set_byte_level(bool add_prefix_space, bool use_regex);

  // Appends the words of a piece of text, in order. They point into `text`, or into `prefixed` when
  // a space was put in front. `text` must be valid UTF-8.
  Status split(std::string_view text, std::vector<std::string_view>& words,
               std::deque<std::string>& prefixed) const;

 private:
  struct Step {
    CompiledRegex regex;
    OnMatch on_match;
    bool invert;
  };
  static Status apply(const Step& step, std::vector<std::string_view>& words);

  std::vector<Step> steps_;
  bool add_prefix_space_ = false;
  std::optional<Step> byte_level_;
};

}  // namespace gapless
