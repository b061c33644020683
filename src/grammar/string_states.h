// add_string_states() of json_machines.h.
#pragma once

#include <utility>
#include <vector>

#include "grammar/byte_dfa.h"
#include "grammar/grammar_builder.h"

namespace gapless {

class StringStates {
 public:
  StringStates(GrammarBuilder& builder, const ByteDfa& dfa, const GrammarAction& on_char,
               bool any_escape)
      : builder_(builder), dfa_(dfa), on_char_(on_char), any_escape_(any_escape) {
    for (int q = 0; q < dfa.num_states(); ++q) states_.push_back(builder.add_state());
  }

  const std::vector<BuildState>& states() const { return states_; }

  void add_edges(int q) {
    add_plain(q);
    add_escapes(q);
  }

 private:
  BuildState state(std::int32_t q) const { return states_[static_cast<std::size_t>(q)]; }

  void add_plain(int q);
  void add_escapes(int q);
  void add_control_escapes(int q, BuildState escape);
  void add_any_escape(int q, BuildState escape);

  GrammarBuilder& builder_;
  const ByteDfa& dfa_;
  const GrammarAction& on_char_;
  const bool any_escape_;
  std::vector<BuildState> states_;
};

template <typename OnQuote>
std::vector<BuildState> add_string_states(GrammarBuilder& builder, const ByteDfa& dfa,
                                          const GrammarAction& on_char, bool any_escape,
                                          const OnQuote& on_quote) {
  StringStates strings(builder, dfa, on_char, any_escape);
  for (int q = 0; q < dfa.num_states(); ++q) {
    on_quote(q, strings.states()[static_cast<std::size_t>(q)]);
    strings.add_edges(q);
  }
  return strings.states();
}

}  // namespace gapless
