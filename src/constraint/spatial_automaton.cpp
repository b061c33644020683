#include "constraint/spatial_automaton.h"

#include <initializer_list>

#include "base/check.h"
#include "base/limits.h"

namespace gapless {
namespace {

enum StateIndex : std::int32_t {
  kPointX,
  kPointY,
  kDetectX,
  kDetectY,
  kDetectSize,
  kGazeX,
  kGazeY,
  kGazeEnd,
};
static_assert(kGazeEnd + 1 == kNumSpatialStates);

struct Edge {
  std::int32_t token;
  std::int32_t next;
};

AutomatonState make_state(std::initializer_list<Edge> edges) {
  static_assert(kMaxAutomatonEdges >= 2);
  AutomatonState state;
  for (const Edge& edge : edges) {
    state.tokens[state.num_edges] = edge.token;
    state.next[state.num_edges] = edge.next;
    ++state.num_edges;
  }
  return state;
}

}  // namespace

std::array<AutomatonState, kNumSpatialStates> build_spatial_automata(const SpatialTokens& tokens) {
  const auto [coord, size, eos, any_token_is_coord] = tokens;
  std::array<AutomatonState, kNumSpatialStates> states;
  states[kPointX] = make_state({{coord, kPointY}, {eos, kPointX}});
  states[kPointY] = make_state({{coord, kPointX}});
  states[kDetectX] = make_state({{coord, kDetectY}, {eos, kDetectX}});
  states[kDetectY] = make_state({{coord, kDetectSize}});
  states[kDetectSize] = make_state({{size, kDetectX}});
  states[kGazeX] = make_state({{coord, kGazeY}, {eos, kGazeX}});
  states[kGazeY] = make_state({{coord, kGazeEnd}});
  states[kGazeEnd] = make_state({{eos, kGazeEnd}});
  if (any_token_is_coord) {
    for (const StateIndex x : {kPointX, kDetectX, kGazeX}) {
      states[x].is_open = 1;
      states[x].otherwise = coord;
    }
  }
  return states;
}

std::int32_t automaton_start(SpatialSkill skill) {
  switch (skill) {
    case SpatialSkill::kPoint:
      return kPointX;
    case SpatialSkill::kDetect:
      return kDetectX;
    case SpatialSkill::kGaze:
      return kGazeX;
  }
  GAPLESS_CHECK_MSG(false, "unknown spatial skill");
  return kNoAutomaton;
}

std::int32_t spatial_max_generated(SpatialSkill skill, int max_objects) {
  GAPLESS_CHECK(max_objects >= 1 && max_objects <= kMaxObjects);
  switch (skill) {
    case SpatialSkill::kPoint:
      return 2 * max_objects + 1;
    case SpatialSkill::kDetect:
      return 3 * max_objects + 1;
    case SpatialSkill::kGaze:
      return 3;
  }
  GAPLESS_CHECK_MSG(false, "unknown spatial skill");
  return 0;
}

SpatialConstraint::SpatialConstraint(SpatialSkill skill, const SpatialTokens& tokens)
    : states_(build_spatial_automata(tokens)), current_(automaton_start(skill)) {
  GAPLESS_CHECK(!tokens.any_token_is_coord);
}

void SpatialConstraint::allowed(std::span<std::uint32_t> mask) const {
  const AutomatonState& state = states_[static_cast<std::size_t>(current_)];
  for (int i = 0; i < state.num_edges; ++i) {
    const auto token = static_cast<std::uint32_t>(state.tokens[i]);
    mask[token / 32] |= 1u << (token % 32);
  }
}

void SpatialConstraint::advance(TokenId token) {
  const AutomatonState& state = states_[static_cast<std::size_t>(current_)];
  for (int i = 0; i < state.num_edges; ++i) {
    if (state.tokens[i] == token.value) {
      current_ = state.next[i];
      return;
    }
  }
}

}  // namespace gapless
