// Whether answers can need more open objects and lists than there are frames: level by level, the states that a row with so many
// frames in use may be in.
#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/grammar.h"

namespace gapless {
namespace {

class FrameBound {
 public:
  explicit FrameBound(const Grammar& grammar) : grammar_(grammar) {
    tables_.push_back(grammar.root_table);
    for (const GrammarAction& action : grammar.actions) {
      if (has_table(action.op)) tables_.push_back(action.table);
    }
    std::sort(tables_.begin(), tables_.end());
    tables_.erase(std::unique(tables_.begin(), tables_.end()), tables_.end());
  }

  bool may_run_out() {
    // Where each level begins. What follows a beginning that was there before is known.
    std::vector<std::vector<std::uint16_t>> begins = {first_level()};
    while (begins.size() <= kMaxGrammarDepth) {
      std::vector<std::uint16_t> next = find_level(begins.back());
      if (next.empty()) return false;
      const auto before = std::find(begins.begin(), begins.end(), next);
      if (before != begins.end()) {
        const auto first = static_cast<std::size_t>(before - begins.begin());
        const std::size_t period = begins.size() - first;
        find_level(begins[first + (kMaxGrammarDepth - first) % period]);
        return !all_end();
      }
      begins.push_back(std::move(next));
    }
    find_level(begins.back());
    return !all_end();
  }

 private:
  static bool has_table(GrammarOp op) {
    return op == GrammarOp::kCall || op == GrammarOp::kPush || op == GrammarOp::kComma;
  }

  std::span<const std::uint16_t> states_of(std::uint16_t table) const {
    const auto behind = std::upper_bound(tables_.begin(), tables_.end(), table);
    const std::size_t end = behind == tables_.end() ? grammar_.next_states.size() : *behind;
    return std::span(grammar_.next_states).subspan(table, end - table);
  }

  std::vector<std::uint16_t> first_level() const {
    std::vector<std::uint16_t> begin = {grammar_.start};
    for (const std::uint16_t state : states_of(grammar_.root_table)) begin.push_back(state);
    return begin;
  }

  template <typename Visit>
  void each_edge(std::uint16_t state, const Visit& visit) const {
    const auto num_classes = static_cast<std::size_t>(grammar_.num_classes);
    for (std::size_t column = 0; column < num_classes; ++column) {
      const GrammarEdge& edge = grammar_.edges[state * num_classes + column];
      if (edge.state != kDeadGrammarState) visit(edge, grammar_.actions[edge.action]);
    }
  }

  // Whether, in a frame that begins in this state, a value may end before one was called: an item of a list does. In an object
  // what kPush says of the way back is never used.
  bool returns_first(std::uint16_t begin) {
    const auto known = returns_first_.find(begin);
    if (known != returns_first_.end()) return known->second;
    bool returns = false;
    std::unordered_set<std::uint16_t> seen = {begin};
    std::vector<std::uint16_t> open = {begin};
    while (!open.empty() && !returns) {
      const std::uint16_t state = open.back();
      open.pop_back();
      each_edge(state, [&](const GrammarEdge& edge, const GrammarAction& action) {
        const bool closes = action.op == GrammarOp::kClose;
        returns = returns || action.op == GrammarOp::kPush || (ends_value(action.op) && !closes);
        if (closes || has_table(action.op) || ends_value(action.op)) return;
        if (seen.insert(edge.state).second) open.push_back(edge.state);
      });
    }
    return returns_first_[begin] = returns;
  }

  // Sets level_; returns where the level behind it begins.
  std::vector<std::uint16_t> find_level(const std::vector<std::uint16_t>& begin) {
    level_.assign(static_cast<std::size_t>(grammar_.num_states), 0);
    std::vector<char> is_next(level_.size(), 0);
    std::vector<std::uint16_t> open, next;
    const auto add = [](std::uint16_t state, std::vector<char>& known,
                        std::vector<std::uint16_t>& list) {
      if (state == kDeadGrammarState || known[state] != 0) return;
      known[state] = 1;
      list.push_back(state);
    };
    for (const std::uint16_t state : begin) add(state, level_, open);
    while (!open.empty()) {
      const std::uint16_t state = open.back();
      open.pop_back();
      each_edge(state, [&](const GrammarEdge& edge, const GrammarAction& action) {
        const bool opens = action.op == GrammarOp::kPush;
        if (ends_value(action.op)) return;
        add(edge.state, opens ? is_next : level_, opens ? next : open);
        if (!has_table(action.op) || (opens && !returns_first(edge.state))) return;
        for (const std::uint16_t to : states_of(action.table)) {
          add(to, opens ? is_next : level_, opens ? next : open);
        }
      });
    }
    std::sort(next.begin(), next.end());
    return next;
  }

  static bool ends_value(GrammarOp op) {
    return op == GrammarOp::kReturn || op == GrammarOp::kRedo || op == GrammarOp::kStringEnd ||
           op == GrammarOp::kClose;
  }

  // Whether the edge is on a way to the end of its value that opens nothing, as far as is known.
  bool leads_to_end(const GrammarEdge& edge, const GrammarAction& action) const {
    if (ends_value(action.op)) return true;
    if (action.op == GrammarOp::kPush || ends_[edge.state] == 0) return false;
    if (!has_table(action.op)) return true;
    const auto states = states_of(action.table);
    return std::any_of(states.begin(), states.end(), [this](std::uint16_t state) {
      return state != kDeadGrammarState && ends_[state] != 0;
    });
  }

  // Whether each state of the level has such a way.
  bool all_end() {
    ends_.assign(level_.size(), 0);
    std::vector<std::vector<std::uint16_t>> waiting(level_.size());
    std::vector<std::uint16_t> open;
    for (std::size_t i = 0; i < level_.size(); ++i) {
      if (level_[i] == 0) continue;
      const auto state = static_cast<std::uint16_t>(i);
      open.push_back(state);
      const auto wait_for = [&](std::uint16_t to) {
        if (to == kDeadGrammarState) return;
        if (waiting[to].empty() || waiting[to].back() != state) waiting[to].push_back(state);
      };
      each_edge(state, [&](const GrammarEdge& edge, const GrammarAction& action) {
        if (ends_value(action.op) || action.op == GrammarOp::kPush) return;
        wait_for(edge.state);
        if (!has_table(action.op)) return;
        for (const std::uint16_t to : states_of(action.table)) wait_for(to);
      });
    }
    std::size_t num_left = open.size();
    while (!open.empty()) {
      const std::uint16_t state = open.back();
      open.pop_back();
      if (ends_[state] != 0) continue;
      bool ends = false;
      each_edge(state, [&](const GrammarEdge& edge, const GrammarAction& action) {
        ends = ends || leads_to_end(edge, action);
      });
      if (!ends) continue;
      ends_[state] = 1;
      --num_left;
      open.insert(open.end(), waiting[state].begin(), waiting[state].end());
    }
    return num_left == 0;
  }

  const Grammar& grammar_;
  std::vector<std::uint16_t> tables_;  // where the lists of next_states begin
  std::unordered_map<std::uint16_t, bool> returns_first_;
  std::vector<char> level_;  // [num_states]
  std::vector<char> ends_;   // [num_states]
};

}  // namespace

bool may_run_out_of_frames(const Grammar& grammar) {
  return FrameBound(grammar).may_run_out();
}

}  // namespace gapless
