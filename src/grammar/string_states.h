// The inside of a JSON string: the states of an automaton over its value's bytes, with JSON's escapes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "grammar/byte_dfa.h"
#include "grammar/grammar_builder.h"

namespace gapless {

// Whether a string may spell the byte with a backslash where \uXXXX is for control characters only.
bool has_escape(std::uint8_t byte);

// Where a string goes on behind a character that is written as an escape.
struct EscapeTarget {
  BuildState to = kNoBuildState;  // itself: the character may not come
  GrammarAction action;           // on the last byte of the escape
};
// By the character's byte. Of those without an escape nothing is said.
using EscapeTargets = std::array<EscapeTarget, '\\' + 1>;

class StringStates {
 public:
  // `on_char` is the action of each code point's first byte. A character is counted where it begins, so an escape is at its
  // backslash: behind the last one allowed it would be a dead end. `on_control`: at the u of \u00XX. `any_escape`: \uXXXX may spell
  // every character; only for a dfa of all strings.
  StringStates(GrammarBuilder& builder, const ByteDfa& dfa, const GrammarAction& on_char,
               const GrammarAction& on_control, bool any_escape);

  // The state of the automaton's state q. States are made when they are first asked for, and get their edges by fill().
  BuildState state(std::int32_t q);
  bool has_state(std::int32_t q) const {
    return states_[static_cast<std::size_t>(q)] != kNoBuildState;
  }
  // A quote leaves state q by on_quote(q, its builder state).
  template <typename OnQuote>
  void fill(const OnQuote& on_quote) {
    for (; num_filled_ < made_.size(); ++num_filled_) {
      const std::int32_t q = made_[num_filled_];
      const BuildState from = state(q);
      on_quote(q, from);
      add_plain(q, from, {});
      const BuildState escape = escape_state(q);
      if (escape != kNoBuildState) builder_.add_edge(from, '\\', escape, on_char_);
    }
  }

  // Bytes that stand for themselves lead from `from` where they lead from q, but for those of `without`, which are in order.
  void add_plain(std::int32_t q, BuildState from, std::span<const std::uint8_t> without);
  // The state behind a backslash in state q; kNoBuildState: none may come.
  BuildState escape_state(std::int32_t q);
  EscapeTargets escape_targets(std::int32_t q);
  // A state behind a backslash, of which some target is there. Not for any_escape.
  BuildState add_escape_state(const EscapeTargets& targets);

 private:
  std::int32_t step(std::int32_t q, std::size_t byte_class) const {
    return dfa_.next[static_cast<std::size_t>(q) * static_cast<std::size_t>(dfa_.num_classes) +
                     byte_class];
  }

  // Neighbouring bytes of one class.
  struct Run {
    std::uint8_t first, last;
    std::uint8_t byte_class;
    bool begins_character;
  };
  static std::vector<Run> plain_runs(const ByteDfa& dfa);
  static std::vector<std::uint8_t> escape_classes(const ByteDfa& dfa);

  void add_control_escapes(const EscapeTargets& targets, BuildState escape);
  void add_any_escape(std::int32_t q, BuildState escape);

  GrammarBuilder& builder_;
  const ByteDfa& dfa_;
  const GrammarAction on_char_, on_control_;
  const bool any_escape_;
  const std::vector<Run> runs_;
  const std::vector<std::uint8_t> escape_classes_;  // those that hold bytes with escapes
  std::vector<BuildState> states_;
  std::vector<std::int32_t> made_;  // that have a state, the oldest first
  std::size_t num_filled_ = 0;
  // States behind a backslash, by where each class of escape_classes_ leads. Most states of a string's automaton go on alike there.
  std::map<std::vector<std::int32_t>, BuildState> escapes_;
};

}  // namespace gapless
