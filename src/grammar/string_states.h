// add_string_states() of json_machines.h.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "grammar/byte_dfa.h"
#include "grammar/grammar_builder.h"
#include "grammar/json_machines.h"

namespace gapless {

// What must hold on the way through the states of an object's names: some of them may not come any more.
struct NameGuards {
  std::vector<GrammarAction> enter;  // into each state
  std::vector<GrammarAction>
      escape;             // at each state's backslash, for all that may be spelled with one
  GrammarAction control;  // at the u of \u00XX
};

// Whether a string may spell the byte with a backslash where \uXXXX is for control characters only.
bool has_escape(std::uint8_t byte);

class StringStates {
 public:
  // `guards`: nullptr for strings that are no names.
  StringStates(GrammarBuilder& builder, const ByteDfa& dfa, const GrammarAction& on_char,
               bool any_escape, const NameGuards* guards)
      : builder_(builder),
        dfa_(dfa),
        on_char_(on_char),
        any_escape_(any_escape),
        guards_(guards),
        runs_(plain_runs(dfa)),
        escaped_bytes_(escaped_bytes(dfa)) {
    for (int q = 0; q < dfa.num_states(); ++q) states_.push_back(builder.add_state());
  }

  const std::vector<BuildState>& states() const { return states_; }

  void add_edges(int q) {
    add_plain(q);
    add_escapes(q);
  }

 private:
  const GrammarAction& on_char(std::int32_t to) const {
    return guards_ == nullptr ? on_char_ : guards_->enter[static_cast<std::size_t>(to)];
  }
  // A character is counted where it begins: an escape behind the last one allowed would be a dead end.
  const GrammarAction& on_backslash(int q) const {
    return guards_ == nullptr ? on_char_ : guards_->escape[static_cast<std::size_t>(q)];
  }
  // On the last byte of an escape, whose backslash has counted it.
  GrammarAction behind_escape(std::int32_t to) const {
    return guards_ == nullptr ? GrammarAction() : on_char(to);
  }
  BuildState state(std::int32_t q) const { return states_[static_cast<std::size_t>(q)]; }

  // Neighbouring bytes of one class.
  struct Run {
    int first, last;
    bool begins_character;
  };
  static std::vector<Run> plain_runs(const ByteDfa& dfa);
  static std::vector<std::uint8_t> escaped_bytes(const ByteDfa& dfa);

  // Where a string goes on behind each character that is written as an escape: the short ones, then the
  // control characters.
  using EscapeTargets = std::vector<std::int32_t>;

  void add_plain(int q);
  void add_escapes(int q);
  bool has_escapes(int q) const;
  EscapeTargets escape_targets(int q) const;
  void add_control_escapes(const EscapeTargets& targets, BuildState escape);
  void add_any_escape(int q, BuildState escape);

  GrammarBuilder& builder_;
  const ByteDfa& dfa_;
  const GrammarAction& on_char_;
  const bool any_escape_;
  const NameGuards* const guards_;
  const std::vector<Run> runs_;
  const std::vector<std::uint8_t> escaped_bytes_;
  std::vector<BuildState> states_;
  // States behind a backslash. Most states of a string's automaton go on alike there and share one: in the
  // tree of an object's names nearly all do.
  std::map<EscapeTargets, BuildState> escapes_;
};

template <typename OnQuote>
std::vector<BuildState> add_string_states(GrammarBuilder& builder, const ByteDfa& dfa,
                                          const GrammarAction& on_char, bool any_escape,
                                          const OnQuote& on_quote, const NameGuards* guards) {
  StringStates strings(builder, dfa, on_char, any_escape, guards);
  for (int q = 0; q < dfa.num_states(); ++q) {
    on_quote(q, strings.states()[static_cast<std::size_t>(q)]);
    strings.add_edges(q);
  }
  return strings.states();
}

}  // namespace gapless
