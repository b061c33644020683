// A regular expression over whole strings, with its automaton.
#pragma once

#include <memory>
#include <optional>

#include "base/status.h"
#include "grammar/byte_dfa.h"
#include "grammar/regex_ast.h"

namespace gapless {

// One place of a schema may be asked many times what its pattern matches, so the automaton is made once. For one thread until it is
// made; then for any.
class StringPattern {
 public:
  explicit StringPattern(RegexPtr regex) : regex_(std::move(regex)) {}

  // Label 1. It lives as long as this does. ResourceExhausted: past kMaxStringStates, or past the grammar's work.
  StatusOr<const ByteDfa*> dfa() const;

 private:
  const RegexPtr regex_;
  mutable std::optional<StatusOr<ByteDfa>> dfa_;
};

using StringPatternPtr = std::shared_ptr<const StringPattern>;

}  // namespace gapless
