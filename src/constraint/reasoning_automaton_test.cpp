#include "constraint/reasoning_automaton.h"

#include <gtest/gtest.h>

#include "step/automaton_walk.h"

namespace gapless {
namespace {

constexpr int kAnswerId = 3, kEndId = 0, kSizeId = 6, kWordId = 40;

// The pool as a model has it.
std::vector<AutomatonState> pool(int num_fed_again) {
  const auto spatial =
      build_spatial_automata({.coord_id = 5, .size_id = kSizeId, .eos_id = kEndId});
  std::vector<AutomatonState> states(spatial.begin(), spatial.end());
  states.resize(static_cast<std::size_t>(reasoning_start()));  // of segment
  const auto reasoning = build_reasoning_automaton(
      {.answer_id = kAnswerId, .denied = {kEndId, kSizeId}, .num_fed_again = num_fed_again});
  states.insert(states.end(), reasoning.begin(), reasoning.end());
  return states;
}

struct Walk {
  std::vector<AutomatonState> states;
  RowState row;

  Walk(int num_fed_again, int exit_at) : states(pool(num_fed_again)) {
    row.automaton = reasoning_start();
    row.exit_at = exit_at;
    row.max_after_exit = 5 + num_fed_again;
    row.max_generated = 100;
  }
  bool allows(int token) const {
    return listed_tokens(states[static_cast<std::size_t>(row.automaton)], row, nullptr)
        .allows(token);
  }
  void sample(int token) {
    ++row.num_generated;
    walk_automaton(states.data(), nullptr, token, row);
  }
};

TEST(ReasoningAutomaton, GoesOnUntilTheAnswer) {
  Walk walk(/*num_fed_again=*/0, /*exit_at=*/10);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(walk.allows(kWordId) && walk.allows(5) && walk.allows(kAnswerId));
    EXPECT_FALSE(walk.allows(kEndId) || walk.allows(kSizeId));
    walk.sample(kWordId);
    EXPECT_EQ(walk.row.automaton, reasoning_start());
  }
  walk.sample(kAnswerId);
  EXPECT_EQ(walk.row.automaton, kNoAutomaton) << "the answer is free";
  EXPECT_EQ(walk.row.max_generated, 10) << "5 tokens and 5 more";
}

TEST(ReasoningAutomaton, ItsLimitLeavesTheAnswerAlone) {
  Walk walk(0, /*exit_at=*/2);
  walk.sample(kWordId);
  EXPECT_TRUE(walk.allows(kWordId));
  walk.sample(kWordId);
  EXPECT_FALSE(walk.allows(kWordId) || walk.allows(kEndId));
  EXPECT_TRUE(walk.allows(kAnswerId));
}

TEST(ReasoningAutomaton, TheAnswerTokenIsFedAgainWhereTheModelWantsIt) {
  Walk walk(/*num_fed_again=*/2, 10);
  walk.sample(kAnswerId);
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(walk.row.automaton, kNoAutomaton);
    EXPECT_TRUE(walk.allows(kAnswerId));
    EXPECT_FALSE(walk.allows(kWordId));
    walk.sample(kAnswerId);
  }
  EXPECT_EQ(walk.row.automaton, kNoAutomaton);
  EXPECT_EQ(walk.row.max_generated, 8) << "set once, when the reasoning ended";
}

// Where every logit is rubbish a row gets its first stop id, allowed or not.
TEST(ReasoningAutomaton, AForbiddenTokenLeadsNowhere) {
  Walk walk(0, 10);
  walk.sample(kEndId);
  EXPECT_EQ(walk.row.automaton, reasoning_start());
}

}  // namespace
}  // namespace gapless
