// Collects states and edges while a grammar is compiled, and turns them into tables.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace gapless {

using BuildState = std::uint32_t;
inline constexpr BuildState kNoBuildState = ~BuildState{0};

class GrammarBuilder {
 public:
  GrammarBuilder();

  BuildState add_state();
  // Bytes [first, last] lead from `from` to `to`. An earlier edge on one of them stays: edges are
  // added in order of precedence.
  void add_edge(BuildState from, std::uint8_t first, std::uint8_t last, BuildState to,
                const GrammarAction& action = {});
  void add_edge(BuildState from, char byte, BuildState to, const GrammarAction& action = {}) {
    add_edge(from, static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), to, action);
  }
  // A byte of which no edge of `state` says anything leads where it leads from `base`. The base has none itself, and no two of the
  // state's own edges are on one byte. For states with few edges of their own, such as those of a tree of names.
  void set_base(BuildState state, BuildState base);
  // In a state with a base: the byte is illegal.
  void forbid(BuildState from, char byte) { add_edge(from, byte, kNoBuildState); }
  // Space, tab and line ends.
  void add_whitespace(BuildState state);
  // When all edges are there: `to` gets those of `from` but its whitespace.
  void copy_edges_later(BuildState from, BuildState to) { copies_.push_back({from, to}); }
  void set_may_end(BuildState state);

  // A list of states for kCall and its like; the same list once.
  std::uint16_t table(const std::vector<BuildState>& states);
  // Sets first_condition and num_conditions.
  void set_conditions(GrammarAction& action, const std::vector<GrammarCondition>& conditions);
  // Whether all of its conditions have a maximum.
  bool is_bounded(const GrammarAction& action) const;
  // The number of a set of names, for kName; the same set once.
  std::uint16_t name_set(const NameSet& names);

  // A value that calls a machine at `start` can only come back if that machine has an answer. States from
  // which no answer can be completed are dropped; InvalidArgument when the start is one.
  StatusOr<Grammar> finish(BuildState start);

  std::size_t num_states() const { return states_.size(); }
  // Past the bounds of grammar_limits.h.
  Status check_size() const;

 private:
  struct Edge {
    std::uint8_t first, last;
    std::uint32_t to;  // kNoBuildState: the bytes are illegal
    std::uint32_t action;
    std::int32_t next = -1;  // of the same state, in the order in which they were added
  };
  struct State {
    std::int32_t first_edge = -1, last_edge = -1;
    BuildState base = kNoBuildState;
    bool may_end = false;
  };

  std::uint32_t action(const GrammarAction& action);
  void append_edge(BuildState from, Edge edge);
  const Edge* first_edge(BuildState state) const { return edge_at(states_[state].first_edge); }
  const Edge* edge_behind(const Edge& edge) const { return edge_at(edge.next); }
  const Edge* edge_at(std::int32_t at) const {
    return at < 0 ? nullptr : &edges_[static_cast<std::size_t>(at)];
  }
  template <typename Visit>
  void each_edge(BuildState state, const Visit& visit) const;
  template <typename Visit>
  void each_it_waits_for(const Edge& edge, const Visit& visit) const;
  std::vector<char> live_states() const;
  bool lives(BuildState state, const std::vector<char>& live) const;
  bool is_own(const Edge& base_edge, BuildState state) const;
  void revive_others(std::vector<char>& live) const;
  bool leads_on(const Edge& edge, const std::vector<char>& live) const;

  std::vector<State> states_;
  std::vector<Edge> edges_;  // of all states
  std::vector<std::pair<BuildState, BuildState>> copies_;
  std::vector<GrammarAction> actions_;
  std::vector<GrammarCondition> conditions_;
  std::map<std::vector<GrammarCondition>, std::uint16_t> condition_lists_;
  std::map<NameSet, std::uint16_t> name_set_numbers_;
  std::vector<NameSet> name_sets_;
  std::vector<BuildState> next_states_;
  std::vector<std::uint16_t> table_sizes_;  // at each table's first entry
  std::map<std::vector<BuildState>, std::uint16_t> tables_;
  struct ActionHash {
    std::size_t operator()(const GrammarAction& action) const;
  };
  std::unordered_map<GrammarAction, std::uint32_t, ActionHash> action_numbers_;
};

}  // namespace gapless
