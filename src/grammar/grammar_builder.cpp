#include "grammar/grammar_builder.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace gapless {
namespace {

constexpr std::size_t kMaxTableEntries = std::numeric_limits<std::uint16_t>::max();

bool is_whitespace(std::uint8_t byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

}  // namespace

GrammarBuilder::GrammarBuilder() : actions_(1) {}

BuildState GrammarBuilder::add_state() {
  states_.emplace_back();
  return static_cast<BuildState>(states_.size() - 1);
}

void GrammarBuilder::add_edge(BuildState from, std::uint8_t first, std::uint8_t last, BuildState to,
                              const GrammarAction& what) {
  append_edge(from, {.first = first, .last = last, .to = to, .action = action(what)});
}

void GrammarBuilder::append_edge(BuildState from, Edge edge) {
  edge.next = -1;
  const auto at = static_cast<std::int32_t>(edges_.size());
  edges_.push_back(edge);
  State& state = states_[from];
  if (state.last_edge < 0) {
    state.first_edge = at;
  } else {
    edges_[static_cast<std::size_t>(state.last_edge)].next = at;
  }
  state.last_edge = at;
}

void GrammarBuilder::set_base(BuildState state, BuildState base) {
  GAPLESS_CHECK(states_[base].base == kNoBuildState);
  states_[state].base = base;
}

void GrammarBuilder::add_whitespace(BuildState state) {
  const GrammarAction space{.op = GrammarOp::kSpace, .max = kMaxWhitespaceRun};
  add_edge(state, ' ', state, space);
  add_edge(state, '\t', '\n', state, space);
  add_edge(state, '\r', state, space);
}

void GrammarBuilder::set_may_end(BuildState state) {
  states_[state].may_end = true;
}

std::uint16_t GrammarBuilder::table(const std::vector<BuildState>& states) {
  const auto [at, is_new] =
      tables_.emplace(states, static_cast<std::uint16_t>(next_states_.size()));
  if (is_new) {
    table_sizes_.resize(next_states_.size(), 0);
    table_sizes_.push_back(static_cast<std::uint16_t>(states.size()));
    next_states_.insert(next_states_.end(), states.begin(), states.end());
    table_sizes_.resize(next_states_.size(), 0);
  }
  return at->second;
}

void GrammarBuilder::set_conditions(GrammarAction& what,
                                    const std::vector<GrammarCondition>& conditions) {
  const auto [at, is_new] =
      condition_lists_.emplace(conditions, static_cast<std::uint16_t>(conditions_.size()));
  if (is_new) conditions_.insert(conditions_.end(), conditions.begin(), conditions.end());
  what.first_condition = at->second;
  what.num_conditions = static_cast<std::uint16_t>(conditions.size());
}

bool GrammarBuilder::is_bounded(const GrammarAction& action) const {
  const auto begin = conditions_.begin() + action.first_condition;
  return std::all_of(begin, begin + action.num_conditions,
                     [](const GrammarCondition& condition) { return condition.max >= 0; });
}

std::uint16_t GrammarBuilder::name_set(const NameSet& names) {
  const auto [at, is_new] =
      name_set_numbers_.emplace(names, static_cast<std::uint16_t>(name_sets_.size()));
  if (is_new) name_sets_.push_back(names);
  return at->second;
}

std::size_t GrammarBuilder::ActionHash::operator()(const GrammarAction& a) const {
  std::uint64_t hash = 1469598103934665603u;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(a.op), std::uint64_t{a.table}, std::uint64_t{a.result},
        std::uint64_t{a.first_condition}, std::uint64_t{a.num_conditions},
        std::uint64_t{static_cast<std::uint32_t>(a.min)},
        std::uint64_t{static_cast<std::uint32_t>(a.max)}}) {
    hash = (hash ^ part) * 1099511628211u;
  }
  return hash;
}

std::uint32_t GrammarBuilder::action(const GrammarAction& what) {
  if (what == GrammarAction()) return 0;
  const auto [at, is_new] =
      action_numbers_.emplace(what, static_cast<std::uint32_t>(actions_.size()));
  if (is_new) actions_.push_back(what);
  return at->second;
}

Status GrammarBuilder::check_size() const {
  if (states_.size() > kMaxGrammarStates || actions_.size() > kMaxTableEntries ||
      next_states_.size() > kMaxTableEntries || conditions_.size() > kMaxTableEntries ||
      name_sets_.size() > kMaxTableEntries) {
    return make_error(StatusCode::kResourceExhausted, "the grammar has more than {} states",
                      kMaxGrammarStates);
  }
  return ok_status();
}

bool GrammarBuilder::leads_on(const Edge& edge, const std::vector<char>& live) const {
  if (edge.to == kNoBuildState) return false;
  const GrammarAction& what = actions_[edge.action];
  switch (what.op) {
    case GrammarOp::kReturn:
    case GrammarOp::kRedo:
    case GrammarOp::kStringEnd:
      return true;
    case GrammarOp::kClose:
      return what.num_conditions > 0;
    case GrammarOp::kCall:
    case GrammarOp::kComma: {
      if (!live[edge.to]) return false;
      const auto begin = next_states_.begin() + what.table;
      return std::any_of(begin, begin + table_sizes_[what.table],
                         [&](BuildState state) { return live[state] != 0; });
    }
    default:
      return live[edge.to] != 0;
  }
}

// Its own and its base's.
template <typename Visit>
void GrammarBuilder::each_edge(BuildState state, const Visit& visit) const {
  const BuildState base = states_[state].base;
  for (const Edge* edge = first_edge(state); edge != nullptr; edge = edge_behind(*edge)) {
    visit(*edge);
  }
  if (base == kNoBuildState) return;
  for (const Edge* edge = first_edge(base); edge != nullptr; edge = edge_behind(*edge)) {
    visit(*edge);
  }
}

// Calls visit(to) for each state whose coming to life may bring this edge's own to life.
template <typename Visit>
void GrammarBuilder::each_it_waits_for(const Edge& edge, const Visit& visit) const {
  if (edge.to == kNoBuildState) return;
  visit(edge.to);
  const GrammarAction& what = actions_[edge.action];
  if (what.op != GrammarOp::kCall && what.op != GrammarOp::kComma) return;
  for (std::uint16_t i = 0; i < table_sizes_[what.table]; ++i) visit(next_states_[what.table + i]);
}

// Whether the state's own edges say where all bytes of its base's edge lead.
bool GrammarBuilder::is_own(const Edge& base_edge, BuildState state) const {
  int num_left = base_edge.last - base_edge.first + 1;
  for (const Edge* edge = first_edge(state); edge != nullptr; edge = edge_behind(*edge)) {
    const int first = std::max(edge->first, base_edge.first);
    const int last = std::min(edge->last, base_edge.last);
    num_left -= std::max(0, last - first + 1);
  }
  return num_left == 0;
}

// Whether an edge leads on, as far as is known.
bool GrammarBuilder::lives(BuildState state, const std::vector<char>& live) const {
  if (states_[state].may_end) return true;
  for (const Edge* edge = first_edge(state); edge != nullptr; edge = edge_behind(*edge)) {
    if (leads_on(*edge, live)) return true;
  }
  const BuildState base = states_[state].base;
  if (base == kNoBuildState) return false;
  for (const Edge* edge = first_edge(base); edge != nullptr; edge = edge_behind(*edge)) {
    if (leads_on(*edge, live) && !is_own(*edge, state)) return true;
  }
  return false;
}

// States from which the value that they belong to can end.
std::vector<char> GrammarBuilder::live_states() const {
  std::vector<char> live(states_.size(), 0);
  // Nearly all are found so: texts lead to states that came later, values and names to some that came before.
  for (const bool backwards : {true, false, true}) {
    for (BuildState i = 0; i < states_.size(); ++i) {
      const BuildState state = backwards ? static_cast<BuildState>(states_.size() - 1 - i) : i;
      if (!live[state] && lives(state, live)) live[state] = 1;
    }
  }
  revive_others(live);
  return live;
}

// Of the states that are not known to live yet.
void GrammarBuilder::revive_others(std::vector<char>& live) const {
  std::vector<BuildState> dead;
  for (BuildState state = 0; state < states_.size(); ++state) {
    if (!live[state]) dead.push_back(state);
  }
  // Which of them may come to life when a state does: waiting[first[state]] up to waiting[first[state + 1]].
  std::vector<std::uint32_t> first(states_.size() + 1, 0);
  const auto each_wait = [&](const auto& visit) {
    for (const BuildState state : dead) {
      each_edge(state, [&](const Edge& edge) {
        each_it_waits_for(edge, [&](BuildState to) { visit(state, to); });
      });
    }
  };
  each_wait([&](BuildState, BuildState to) { ++first[to + 1]; });
  for (std::size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  std::vector<BuildState> waiting(first.back());
  std::vector<std::uint32_t> end(first.begin(), first.end() - 1);
  each_wait([&](BuildState state, BuildState to) { waiting[end[to]++] = state; });
  std::vector<BuildState> open = std::move(dead);
  while (!open.empty()) {
    const BuildState state = open.back();
    open.pop_back();
    if (live[state] || !lives(state, live)) continue;
    live[state] = 1;
    open.insert(open.end(), waiting.begin() + first[state], waiting.begin() + first[state + 1]);
  }
}

StatusOr<Grammar> GrammarBuilder::finish(BuildState start) {
  for (const auto& [from, to] : copies_) {
    for (std::int32_t at = states_[from].first_edge; at >= 0;) {
      const Edge edge = *edge_at(at);
      if (!is_whitespace(edge.first)) append_edge(to, edge);
      at = edge.next;
    }
  }
  GAPLESS_RETURN_IF_ERROR(check_size());
  const std::vector<char> live = live_states();
  if (!live[start]) return invalid_argument("no value satisfies the schema");

  Grammar grammar;
  std::array<bool, 257> starts_class{};
  std::vector<std::uint16_t> number(states_.size(), kDeadGrammarState);
  for (BuildState state = 0; state < states_.size(); ++state) {
    if (!live[state]) continue;
    number[state] = static_cast<std::uint16_t>(grammar.num_states++);
    for (const Edge* edge = first_edge(state); edge != nullptr; edge = edge_behind(*edge)) {
      starts_class[edge->first] = true;
      starts_class[std::size_t{edge->last} + 1] = true;
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (byte > 0 && starts_class[byte]) ++grammar.num_classes;
    grammar.class_of[byte] = static_cast<std::uint8_t>(grammar.num_classes);
  }
  ++grammar.num_classes;
  const auto num_classes = static_cast<std::size_t>(grammar.num_classes);
  const std::size_t num_edges = static_cast<std::size_t>(grammar.num_states) * num_classes;
  if (num_edges * sizeof(GrammarEdge) > kMaxGrammarTableBytes) {
    return make_error(StatusCode::kResourceExhausted, "the grammar's table has more than {} bytes",
                      kMaxGrammarTableBytes);
  }
  grammar.edges.resize(num_edges);
  const auto row_of = [&](BuildState state) {
    return grammar.edges.data() + number[state] * num_classes;
  };
  const auto to_edge = [&](const Edge& edge) -> GrammarEdge {
    if (!leads_on(edge, live)) return {};
    // A state that is not gone to (a return's) is any that lives.
    return {.state = live[edge.to] ? number[edge.to] : number[start],
            .action = static_cast<std::uint16_t>(edge.action)};
  };
  std::vector<BuildState> with_base;
  for (BuildState state = 0; state < states_.size(); ++state) {
    if (!live[state]) continue;
    grammar.may_end.push_back(states_[state].may_end ? 1 : 0);
    if (states_[state].base != kNoBuildState) {
      with_base.push_back(state);
      continue;
    }
    GrammarEdge* const row = row_of(state);
    for (const Edge* edge = first_edge(state); edge != nullptr; edge = edge_behind(*edge)) {
      const GrammarEdge leads = to_edge(*edge);
      for (std::size_t c = grammar.class_of[edge->first]; c <= grammar.class_of[edge->last]; ++c) {
        if (row[c].state == kDeadGrammarState) row[c] = leads;
      }
    }
  }
  for (const BuildState state : with_base) {
    GrammarEdge* const row = row_of(state);
    const BuildState base = states_[state].base;
    if (live[base]) std::copy_n(row_of(base), num_classes, row);
    for (const Edge* edge = first_edge(state); edge != nullptr; edge = edge_behind(*edge)) {
      std::fill(row + grammar.class_of[edge->first], row + grammar.class_of[edge->last] + 1,
                to_edge(*edge));
    }
  }
  grammar.start = number[start];
  grammar.actions = actions_;
  grammar.conditions = conditions_;
  grammar.name_sets = name_sets_;
  for (const BuildState state : next_states_) grammar.next_states.push_back(number[state]);
  grammar.character_loops = find_character_loops(grammar);
  return grammar;
}

}  // namespace gapless
