// How a row goes through its automaton: shared by the kernels of the CPU and of CUDA and by the fake model. (The oracle in
// kernels/reference has its own.)
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "step/row_state.h"

namespace gapless {

// nullptr: the row has none.
GAPLESS_HOST_DEVICE inline const AutomatonState* automaton_state(const AutomatonState* automata,
                                                                 const RowState& row) {
  return row.automaton == kNoAutomaton ? nullptr : automata + row.automaton;
}

// What a sampled token counts as in the state of its row.
GAPLESS_HOST_DEVICE inline std::int32_t counted_as(const AutomatonState* state,
                                                   std::int32_t token) {
  if (state == nullptr || state->otherwise < 0) return token;
  for (int i = 0; i < state->num_edges; ++i) {
    if (state->tokens[i] == token) return token;
  }
  return state->otherwise;
}

GAPLESS_HOST_DEVICE inline bool has_exit(const AutomatonState& state, const RowState& row) {
  return state.is_open != 0 && row.max_after_exit > 0;
}

// Whether class `token_class` is among those of `classes` (AutomatonState).
GAPLESS_HOST_DEVICE inline bool has_class(std::uint32_t classes, std::uint8_t token_class) {
  return (classes >> token_class & 1u) != 0;
}

// The tokens that decide whether a row of `state` may take one: with `only`, these and those of the classes alone, otherwise
// every other one.
struct ListedTokens {
  bool only = true;
  std::uint32_t classes = 0;
  const std::uint8_t* token_classes = nullptr;  // read only where there are classes
  int num_tokens = 0;
  std::int32_t tokens[kMaxAutomatonEdges] = {};

  GAPLESS_HOST_DEVICE bool holds(std::int32_t token) const {
    for (int i = 0; i < num_tokens; ++i) {
      if (tokens[i] == token) return true;
    }
    return false;
  }
  GAPLESS_HOST_DEVICE bool allows(std::int32_t token) const {
    return holds(token) == only || (classes != 0 && has_class(classes, token_classes[token]));
  }
};

GAPLESS_HOST_DEVICE inline ListedTokens listed_tokens(const AutomatonState& state,
                                                      const RowState& row,
                                                      const std::uint8_t* token_classes) {
  ListedTokens listed;
  listed.classes = state.is_open == 0 ? state.classes : 0;
  listed.token_classes = token_classes;
  const bool must_leave = has_exit(state, row) && row.num_generated >= row.exit_at;
  listed.only = state.is_open == 0 || must_leave;
  const int num_edges = must_leave ? 1 : state.num_edges;
  for (int i = 0; i < num_edges; ++i) {
    if (!listed.only && state.next[i] != kForbiddenEdge) continue;
    listed.tokens[listed.num_tokens++] = state.tokens[i];
  }
  return listed;
}

// The row has sampled `token`, which num_generated counts already.
GAPLESS_HOST_DEVICE inline void walk_automaton(const AutomatonState* automata,
                                               const std::uint8_t* token_classes,
                                               std::int32_t token, RowState& row) {
  if (row.automaton == kNoAutomaton) return;
  const AutomatonState& state = automata[row.automaton];
  for (int i = 0; i < state.num_edges; ++i) {
    // A forbidden token comes only where nothing was left to sample.
    if (state.tokens[i] != token || state.next[i] == kForbiddenEdge) continue;
    row.automaton = state.next[i];
    if (i == 0 && has_exit(state, row)) row.max_generated = row.num_generated + row.max_after_exit;
    return;
  }
  if (state.is_open != 0 || state.classes == 0) return;
  const std::uint8_t token_class = token_classes[token];
  if (has_class(state.classes, token_class)) row.automaton = state.class_next[token_class];
}

}  // namespace gapless
