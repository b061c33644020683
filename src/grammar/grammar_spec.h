// What an answer must look like, as a request says it, whatever door it came through.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/text_with_calls.h"

namespace gapless {

struct GrammarSpec {
  enum class Kind : std::uint8_t {
    kJsonSchema,  // `text` is the schema, as JSON
    kJsonObject,  // any JSON object
    kRegex,       // `text` is the pattern; the whole answer matches it
    kChoice,      // one of `choices`
    kCalls,  // text in which calls of functions may come; `text` and `calls` are those of text_with_calls.h
  };

  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  CallForm calls;
  // The request's field that asked for it: the one at fault when it cannot be held.
  std::string field;

  // The same for specs that mean the same and have the same field.
  std::string key() const;
};

// InvalidArgument: not a schema or pattern, without an answer, or one that cannot be held exactly; the message names
// the keyword and its place. One that is too large is InvalidArgument too: it will never fit.
// It carries the spec's field. Takes up to a second; see grammar_limits.h.
StatusOr<Grammar> compile_grammar(const GrammarSpec& spec);

}  // namespace gapless
