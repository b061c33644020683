#include "constraint/spatial_automaton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace gapless {
namespace {

constexpr SpatialTokens kTokens{.coord_id = 5, .size_id = 37, .eos_id = 0};

std::set<int> allowed_ids(const TokenConstraint& constraint) {
  std::vector<std::uint32_t> mask(3, 0);
  constraint.allowed(mask);
  std::set<int> ids;
  for (int id = 0; id < 96; ++id) {
    if (mask[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1) ids.insert(id);
  }
  return ids;
}

// What may be sampled before each of `tokens`, then after the last one.
std::vector<std::set<int>> walk(SpatialSkill skill, std::initializer_list<int> tokens) {
  SpatialConstraint constraint(skill, kTokens);
  std::vector<std::set<int>> seen{allowed_ids(constraint)};
  for (const int token : tokens) {
    constraint.advance(TokenId(token));
    seen.push_back(allowed_ids(constraint));
  }
  return seen;
}

// The device's walk: the pool's tables followed by hand, from the start index that a row gets.
std::vector<std::set<int>> walk_tables(SpatialSkill skill, std::initializer_list<int> tokens) {
  const auto states = build_spatial_automata(kTokens);
  auto current = static_cast<std::size_t>(automaton_start(skill));
  std::vector<std::set<int>> seen;
  auto edges = [&] {
    return std::set<int>(states[current].tokens,
                         states[current].tokens + states[current].num_edges);
  };
  seen.push_back(edges());
  for (const int token : tokens) {
    for (int i = 0; i < states[current].num_edges; ++i) {
      if (states[current].tokens[i] == token) {
        current = static_cast<std::size_t>(states[current].next[i]);
        break;
      }
    }
    seen.push_back(edges());
  }
  return seen;
}

using Set = std::set<int>;

TEST(SpatialAutomaton, PointAlternatesXAndY) {
  const std::vector<Set> expected{Set{0, 5}, Set{5}, Set{0, 5}, Set{5}};
  EXPECT_EQ(walk(SpatialSkill::kPoint, {5, 5, 5}), expected);
  EXPECT_EQ(walk_tables(SpatialSkill::kPoint, {5, 5, 5}), expected);
}

TEST(SpatialAutomaton, DetectGoesXYSize) {
  const std::vector<Set> expected{Set{0, 5}, Set{5}, Set{37}, Set{0, 5}, Set{5}};
  EXPECT_EQ(walk(SpatialSkill::kDetect, {5, 5, 37, 5}), expected);
  EXPECT_EQ(walk_tables(SpatialSkill::kDetect, {5, 5, 37, 5}), expected);
}

TEST(SpatialAutomaton, GazeEndsAfterOnePoint) {
  const std::vector<Set> expected{Set{0, 5}, Set{5}, Set{0}};
  EXPECT_EQ(walk(SpatialSkill::kGaze, {5, 5}), expected);
  EXPECT_EQ(walk_tables(SpatialSkill::kGaze, {5, 5}), expected);
}

TEST(SpatialAutomaton, EveryEdgeStaysInThePool) {
  for (const AutomatonState& state : build_spatial_automata(kTokens)) {
    ASSERT_GE(state.num_edges, 1);
    ASSERT_LE(state.num_edges, kMaxAutomatonEdges);
    for (int i = 0; i < state.num_edges; ++i) {
      EXPECT_GE(state.next[i], 0);
      EXPECT_LT(state.next[i], kNumSpatialStates);
    }
  }
}

// Only where an object may begin does any token count as a coordinate.
TEST(SpatialAutomaton, WithoutATokenForCoordinatesAnyTokenBeginsAnObject) {
  SpatialTokens tokens = kTokens;
  tokens.any_token_is_coord = true;
  const auto with = build_spatial_automata(tokens), without = build_spatial_automata(kTokens);
  int num_open = 0;
  for (std::size_t i = 0; i < with.size(); ++i) {
    const bool may_end = with[i].num_edges == 2;
    EXPECT_EQ(with[i].otherwise, may_end ? 5 : -1) << "state " << i;
    EXPECT_EQ(without[i].otherwise, -1);
    num_open += may_end ? 1 : 0;
  }
  EXPECT_EQ(num_open, 3);
  for (const SpatialSkill skill :
       {SpatialSkill::kPoint, SpatialSkill::kDetect, SpatialSkill::kGaze}) {
    EXPECT_EQ(with[static_cast<std::size_t>(automaton_start(skill))].otherwise, 5);
  }
}

TEST(SpatialAutomaton, ATokenThatIsNotAllowedChangesNothing) {
  EXPECT_EQ(walk(SpatialSkill::kDetect, {5, 0, 12}),
            (std::vector<Set>{Set{0, 5}, Set{5}, Set{5}, Set{5}}));
}

TEST(SpatialAutomaton, LengthLimitsHoldWholeObjectsAndOneEos) {
  EXPECT_EQ(spatial_max_generated(SpatialSkill::kPoint, 1), 3);
  EXPECT_EQ(spatial_max_generated(SpatialSkill::kPoint, kMaxObjects), 2 * kMaxObjects + 1);
  EXPECT_EQ(spatial_max_generated(SpatialSkill::kDetect, 50), 151);
  EXPECT_EQ(spatial_max_generated(SpatialSkill::kGaze, 50), 3);
}

}  // namespace
}  // namespace gapless
