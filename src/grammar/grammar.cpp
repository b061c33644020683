#include "grammar/grammar.h"

#include <algorithm>
#include <bit>

namespace gapless {
namespace {

std::span<const GrammarCondition> conditions_of(const Grammar& g, const GrammarAction& action) {
  return std::span(g.conditions).subspan(action.first_condition, action.num_conditions);
}

// Whether some alternative still has room for what is there and for what it requires.
bool has_room(const Grammar& g, const GrammarAction& action, const GrammarFrame& frame, int extra) {
  for (const GrammarCondition& condition : conditions_of(g, action)) {
    if (condition.max < 0) return true;
    if (frame.count + extra + num_missing(condition, frame) <= condition.max) return true;
  }
  return false;
}

// Whether a member of these names, or another one, may still come: what is required must find room behind it.
bool may_come(const Grammar& g, const GrammarAction& action, const GrammarFrame& frame) {
  const NameSet& names = g.name_sets[action.result];
  const auto any = [&](const NameSet* among) {
    std::uint32_t left = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      left |= names[i] & ~frame.seen[i] & (among == nullptr ? ~0u : (*among)[i]);
    }
    return left != 0;
  };
  for (const GrammarCondition& condition : conditions_of(g, action)) {
    const int room =
        condition.max < 0 ? 1 : condition.max - frame.count - num_missing(condition, frame);
    // In the last places only what is required may come.
    if (room > 0 ? action.table == 1 || any(nullptr) : room == 0 && any(&condition.required)) {
      return true;
    }
  }
  return false;
}

bool close(const Grammar& g, const GrammarAction& action, GrammarRow& row) {
  if (row.depth == 0) return false;
  const GrammarFrame& frame = row.frames[row.depth];
  const int count = frame.count + action.result;
  std::uint32_t roles = 0;
  for (const GrammarCondition& condition : conditions_of(g, action)) {
    const bool holds = num_missing(condition, frame) == 0 && count >= condition.min &&
                       (condition.max < 0 || count <= condition.max);
    if (holds) roles |= 1u << condition.role;
  }
  if (roles == 0) return false;
  --row.depth;
  row.state = g.next_states[row.frames[row.depth].next + roles - 1];
  return true;
}

// False: the edge may not be taken. `redo`: the byte was not taken.
bool act(const Grammar& g, const GrammarAction& action, GrammarRow& row, bool& redo) {
  GrammarFrame& frame = row.frames[row.depth];
  switch (action.op) {
    case GrammarOp::kNone:
      return true;
    case GrammarOp::kSpace:
    case GrammarOp::kChar:
      return ++row.length <= action.max || action.max < 0;
    case GrammarOp::kStringEnd:
      if (row.length < action.min) return false;
      break;
    default:
      break;
  }
  row.length = 0;
  switch (action.op) {
    case GrammarOp::kCall:
      frame.next = action.table;
      return true;
    case GrammarOp::kPush:
      if (row.depth == kMaxGrammarDepth) return false;
      row.frames[++row.depth] = {.next = action.table};
      return true;
    case GrammarOp::kRedo:
      redo = true;
      row.state = g.next_states[frame.next + action.result];
      return true;
    case GrammarOp::kReturn:
      row.state = g.next_states[frame.next + action.result];
      return true;
    case GrammarOp::kStringBegin:
      return true;
    case GrammarOp::kStringEnd:
      row.state = g.next_states[frame.next + action.result];
      return true;
    case GrammarOp::kName:
      return may_come(g, action, frame);
    case GrammarOp::kKey: {
      std::uint32_t& word = frame.seen[action.result / 32];
      const std::uint32_t bit = 1u << action.result % 32;
      if ((word & bit) != 0) return false;
      word |= bit;
      ++frame.count;
      return has_room(g, action, frame, 0);
    }
    case GrammarOp::kOtherKey:
      ++frame.count;
      return has_room(g, action, frame, 0);
    case GrammarOp::kComma:
      ++frame.count;
      frame.next = action.table;
      return has_room(g, action, frame, 1);
    case GrammarOp::kClose:
      return close(g, action, row);
    default:
      return false;
  }
}

}  // namespace

int num_missing(const GrammarCondition& condition, const GrammarFrame& frame) {
  int missing = 0;
  for (std::size_t i = 0; i < frame.seen.size(); ++i) {
    missing += std::popcount(condition.required[i] & ~frame.seen[i]);
  }
  return missing;
}

int Grammar::largest_count() const {
  int largest = 0;
  for (const GrammarCondition& condition : conditions) {
    largest = std::max({largest, condition.min, condition.max});
  }
  return largest;
}

std::size_t Grammar::bytes() const {
  return edges.size() * sizeof(GrammarEdge) + may_end.size() +
         actions.size() * sizeof(GrammarAction) + conditions.size() * sizeof(GrammarCondition) +
         name_sets.size() * sizeof(NameSet) + next_states.size() * sizeof(std::uint16_t);
}

GrammarRow begin_row(const Grammar& grammar) {
  GrammarRow row;
  row.state = grammar.start;
  row.frames[0].next = grammar.root_table;
  return row;
}

bool advance(const Grammar& grammar, GrammarRow& row, std::uint8_t byte) {
  // A number ends at most once; what follows it is no number.
  for (int turn = 0; turn < 2; ++turn) {
    const GrammarEdge edge = grammar.edge(row.state, byte);
    if (edge.state == kDeadGrammarState) return false;
    row.state = edge.state;
    bool redo = false;
    if (edge.action != 0 && !act(grammar, grammar.actions[edge.action], row, redo)) return false;
    if (!redo) return true;
  }
  return false;
}

bool may_end(const Grammar& grammar, const GrammarRow& row) {
  return row.depth == 0 && grammar.may_end[row.state] != 0;
}

bool accepts(const Grammar& grammar, std::string_view text) {
  GrammarRow row = begin_row(grammar);
  for (const char byte : text) {
    if (!advance(grammar, row, static_cast<std::uint8_t>(byte))) return false;
  }
  return may_end(grammar, row);
}

}  // namespace gapless
