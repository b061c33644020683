#include "constraint/reasoning_automaton.h"

#include "base/check.h"

namespace gapless {

std::vector<AutomatonState> build_reasoning_automaton(const ReasoningTokens& tokens) {
  GAPLESS_CHECK(tokens.denied.size() < kMaxAutomatonEdges && tokens.num_fed_again >= 0);
  // The answer begins behind the last state.
  const auto next_of = [&](int state) {
    return state == tokens.num_fed_again ? kNoAutomaton : reasoning_start() + state + 1;
  };
  std::vector<AutomatonState> states(1);
  AutomatonState& reasoning = states.front();
  reasoning.is_open = 1;
  reasoning.tokens[0] = tokens.answer_id;
  reasoning.next[0] = next_of(0);
  reasoning.num_edges = 1;
  for (const std::int32_t token : tokens.denied) {
    reasoning.tokens[reasoning.num_edges] = token;
    reasoning.next[reasoning.num_edges++] = kForbiddenEdge;
  }
  for (int i = 1; i <= tokens.num_fed_again; ++i) {
    AutomatonState fed;
    fed.num_edges = 1;
    fed.tokens[0] = tokens.answer_id;
    fed.next[0] = next_of(i);
    states.push_back(fed);
  }
  return states;
}

}  // namespace gapless
