// The automaton of an answer that begins with reasoning: text with coordinates in it up to an end token of its own, then
// the answer.
//
//   reasoning  every token but the denied ones; {answer_id} leads out of it
//   fed again  {answer_id}, as often as the model wants it behind the one that was sampled
//   answer     no automaton: the row's denied ids count
//
// How long each part may be is the row's (RowState::exit_at, max_after_exit), so an answer always comes.
#pragma once

#include <cstdint>
#include <vector>

#include "constraint/segment_automaton.h"

namespace gapless {

struct ReasoningTokens {
  std::int32_t answer_id = 0;
  std::vector<std::int32_t> denied;  // at most kMaxAutomatonEdges - 1
  int num_fed_again = 0;
};

// Its states, as they lie in the device's automata pool from reasoning_start() on: behind those of segment.
std::vector<AutomatonState> build_reasoning_automaton(const ReasoningTokens& tokens);

// RowState::automaton of a new sequence that reasons.
inline constexpr std::int32_t reasoning_start() {
  return segment_start() + kNumSegmentStates;
}

}  // namespace gapless
