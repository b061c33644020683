// add_string_states() of json_machines.h.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "grammar/byte_dfa.h"
#include "grammar/grammar_builder.h"

namespace gapless {

class StringStates {
 public:
  // `may_enter`: of each state of dfa, what must hold on the way into it, and nothing for most; or none at all.
  StringStates(GrammarBuilder& builder, const ByteDfa& dfa, const GrammarAction& on_char,
               bool any_escape, std::span<const GrammarAction> may_enter)
      : builder_(builder),
        dfa_(dfa),
        on_char_(on_char),
        any_escape_(any_escape),
        may_enter_(may_enter) {
    for (int q = 0; q < dfa.num_states(); ++q) states_.push_back(builder.add_state());
  }

  const std::vector<BuildState>& states() const { return states_; }

  void add_edges(int q) {
    add_plain(q);
    add_escapes(q);
  }

 private:
  const GrammarAction& on_char(std::int32_t to) const {
    return may_enter_.empty() ? on_char_ : may_enter_[static_cast<std::size_t>(to)];
  }
  // On the last byte of an escape, whose backslash has counted it.
  GrammarAction behind_escape(std::int32_t to) const {
    return may_enter_.empty() ? GrammarAction() : on_char(to);
  }
  BuildState state(std::int32_t q) const { return states_[static_cast<std::size_t>(q)]; }

  // Where a string goes on behind each character that is written as an escape: the short ones, then the
  // control characters.
  using EscapeTargets = std::vector<std::int32_t>;

  void add_plain(int q);
  void add_escapes(int q);
  EscapeTargets escape_targets(int q) const;
  void add_control_escapes(const EscapeTargets& targets, BuildState escape);
  void add_any_escape(int q, BuildState escape);

  GrammarBuilder& builder_;
  const ByteDfa& dfa_;
  const GrammarAction& on_char_;
  const bool any_escape_;
  const std::span<const GrammarAction> may_enter_;
  std::vector<BuildState> states_;
  // States behind a backslash. Most states of a string's automaton go on alike there and share one: in the
  // tree of an object's names nearly all do.
  std::map<EscapeTargets, BuildState> escapes_;
};

template <typename OnQuote>
std::vector<BuildState> add_string_states(GrammarBuilder& builder, const ByteDfa& dfa,
                                          const GrammarAction& on_char, bool any_escape,
                                          const OnQuote& on_quote,
                                          std::span<const GrammarAction> may_enter) {
  StringStates strings(builder, dfa, on_char, any_escape, may_enter);
  for (int q = 0; q < dfa.num_states(); ++q) {
    on_quote(q, strings.states()[static_cast<std::size_t>(q)]);
    strings.add_edges(q);
  }
  return strings.states();
}

}  // namespace gapless
