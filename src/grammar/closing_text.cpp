#include "grammar/closing_text.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <set>
#include <unordered_set>

#include "grammar/grammar_limits.h"

namespace gapless {
namespace {

// States on the way to the exits of one state: the tree of an object's names.
constexpr std::size_t kMaxStatesOnTheWay = 20'000;
// A text that is longer is not looked for.
constexpr std::size_t kMaxClosingBytes = 16'384;
// Steps of looking at one exit of a state, as against following one edge.
constexpr long kWorkOfAnExit = 16;
// Values in values whose costs depend on each other.
constexpr int kMaxCostRounds = 64;
// Costs, in bytes. The ranks of what is done only when nothing better is there lie above those of what is wanted.
constexpr int kNever = 1'000'000'000;
constexpr int kUnwantedName = 10'000'000, kOtherName = 20'000'000;
constexpr int kEnd = -10'000'000;

int sum(int a, int b) {
  return std::min(kNever, a + b);
}
int times(int count, int cost) {
  return static_cast<int>(std::min<std::int64_t>(kNever, std::int64_t{count} * cost));
}

bool leads_through(GrammarOp op) {
  return op == GrammarOp::kNone || op == GrammarOp::kName || op == GrammarOp::kStringBegin ||
         op == GrammarOp::kChar;
}

bool has_bit(const NameSet& names, int bit) {
  return (names[static_cast<std::size_t>(bit) / 32] >> bit % 32 & 1) != 0;
}

}  // namespace

ClosingText::ClosingText(const Grammar& grammar) : grammar_(grammar) {
  // A letter where there is one, and those first: of equal ways the first is taken.
  const auto is_letter = [](int byte) { return 'a' <= byte && byte <= 'z'; };
  std::vector<std::uint8_t> byte_of_class(static_cast<std::size_t>(grammar.num_classes));
  for (int byte = 255; byte >= 0; --byte) {
    std::uint8_t& chosen = byte_of_class[grammar.class_of[static_cast<std::size_t>(byte)]];
    if (is_letter(byte) || !is_letter(chosen)) chosen = static_cast<std::uint8_t>(byte);
  }
  const auto to_try = std::back_inserter(class_bytes_);
  std::copy_if(byte_of_class.begin(), byte_of_class.end(), to_try, is_letter);
  std::copy_if(byte_of_class.begin(), byte_of_class.end(), to_try, std::not_fn(is_letter));
  find_costs();
}

// ---- ways out of a state

std::shared_ptr<const ClosingText::Exits> ClosingText::exits_of(std::uint16_t state,
                                                                long& work) const {
  static const auto kNone = std::make_shared<const Exits>();
  if (work <= 0) return kNone;
  {
    MutexLock lock(mutex_);
    if (const auto known = exits_.find(state); known != exits_.end()) return known->second;
  }
  auto exits = std::make_shared<const Exits>(find_exits(state, work));
  if (work <= 0) return kNone;  // they may not be all
  MutexLock lock(mutex_);
  if (num_kept_bytes_ > kMaxKeptPathBytes) {
    exits_.clear();
    num_kept_bytes_ = 0;
  }
  exits_[state] = exits;
  num_kept_bytes_ += exits->num_bytes;
  return exits;
}

// Breadth first, so the first way to an exit is a shortest one.
ClosingText::Exits ClosingText::find_exits(std::uint16_t start, long& work) const {
  struct Step {
    std::uint16_t state;
    std::int32_t from;
    std::uint8_t byte;
    Chars chars;
    std::size_t length;
  };
  std::vector<Step> steps = {{start, -1, 0, {}, 0}};
  std::unordered_set<std::uint16_t> reached = {start};
  std::set<std::pair<std::uint16_t, std::uint16_t>> found;
  Exits exits;
  const auto path_to = [&steps](std::size_t at) {
    std::string path;
    for (; steps[at].from >= 0; at = static_cast<std::size_t>(steps[at].from)) {
      path += static_cast<char>(steps[at].byte);
    }
    std::reverse(path.begin(), path.end());
    return path;
  };
  bool has_end = false;
  for (std::size_t i = 0; i < steps.size() && work > 0; ++i) {
    const Step step = steps[i];
    if (step.length > kMaxClosingPath) break;
    work -= std::ssize(class_bytes_);
    if (!has_end && grammar_.may_end[step.state] != 0) {
      exits.list.push_back({.chars = step.chars, .path = path_to(i)});
      has_end = true;
    }
    for (const std::uint8_t byte : class_bytes_) {
      const GrammarEdge edge = grammar_.edge(step.state, byte);
      if (edge.state == kDeadGrammarState) continue;
      const GrammarOp op = grammar_.actions[edge.action].op;
      if (leads_through(op)) {
        const bool counts = op == GrammarOp::kChar;
        if (counts && edge.state == step.state && !exits.loop) {
          exits.loop = Loop{step.state, byte, step.chars, path_to(i)};
        }
        if (steps.size() < kMaxStatesOnTheWay && reached.insert(edge.state).second) {
          const Chars chars = op == GrammarOp::kStringBegin
                                  ? Chars{.num = 0, .begins = true}
                                  : Chars{step.chars.num + (counts ? 1 : 0), step.chars.begins};
          steps.push_back({edge.state, static_cast<std::int32_t>(i), byte, chars, step.length + 1});
        }
        continue;
      }
      if (op == GrammarOp::kSpace || !found.insert({edge.action, edge.state}).second) continue;
      Exit exit{op, edge.action, edge.state, step.chars, path_to(i)};
      if (op != GrammarOp::kRedo) exit.path += static_cast<char>(byte);
      exits.list.push_back(std::move(exit));
    }
  }
  for (const Exit& exit : exits.list) {
    exits.num_bytes += sizeof(Exit) + exit.path.size();
    work -= std::ssize(exit.path);
  }
  return exits;
}

// ---- what values cost

// Of each value and each object or list, from the innermost out: those that refer to each other take some rounds.
void ClosingText::find_costs() {
  for (std::size_t i = 0; i < grammar_.edges.size(); ++i) {
    const GrammarEdge& edge = grammar_.edges[i];
    if (edge.state == kDeadGrammarState || edge.action == 0) continue;
    const GrammarAction& action = grammar_.actions[edge.action];
    if (action.op == GrammarOp::kCall || action.op == GrammarOp::kComma) {
      value_costs_[edge.state] = kNever;
    } else if (action.op == GrammarOp::kPush) {
      push_costs_[{edge.state, action.table}] = kNever;
    }
  }
  bool changed = true;
  long work = kMaxClosingWork;
  const auto note = [&changed](int& cost, int now) {
    if (now >= cost) return;
    cost = now;
    changed = true;
  };
  for (int round = 0; round < kMaxCostRounds && changed && work > 0; ++round) {
    changed = false;
    for (auto& [start, cost] : value_costs_) note(cost, cost_of_value(start, work));
    for (auto& [push, cost] : push_costs_) note(cost, cost_of_push(push, work));
  }
}

int ClosingText::known_cost(const Push& push) const {
  const auto found = push_costs_.find(push);
  return found == push_costs_.end() ? kNever : found->second;
}

// Of the value that the cheapest of them ends.
int ClosingText::least_cost(const Exits& exits) const {
  int least = kNever;
  for (const Exit& exit : exits.list) {
    int cost = static_cast<int>(exit.path.size());
    if (exit.op == GrammarOp::kStringEnd) {
      cost = sum(cost, std::max(0, action_of(exit).min - exit.chars.num));
    } else if (exit.op == GrammarOp::kPush) {
      cost = sum(cost, known_cost({exit.to, action_of(exit).table}));
    } else if (exit.op != GrammarOp::kReturn && exit.op != GrammarOp::kRedo) {
      continue;
    }
    least = std::min(least, cost);
  }
  return least;
}

int ClosingText::cost_of_value(std::uint16_t start, long& work) const {
  return least_cost(*exits_of(start, work));
}

int ClosingText::cost_of_push(const Push& push, long& work) const {
  int least = kNever;
  const auto exits = exits_of(push.first, work);
  const bool is_object = std::any_of(exits->list.begin(), exits->list.end(), [](const Exit& exit) {
    return exit.op == GrammarOp::kKey || exit.op == GrammarOp::kOtherKey;
  });
  for (const Exit& exit : exits->list) {
    if (exit.op != GrammarOp::kClose) continue;
    const GrammarAction& action = action_of(exit);
    for (int i = 0; i < action.num_conditions; ++i) {
      const GrammarCondition& condition =
          grammar_.conditions[static_cast<std::size_t>(action.first_condition + i)];
      const int inside = is_object ? cost_of_members(*exits, condition, work)
                                   : cost_of_items(*exits, push, condition, work);
      least = std::min(least, sum(inside, 1));
    }
  }
  return least;
}

int ClosingText::cost_of_members(const Exits& exits, const GrammarCondition& condition,
                                 long& work) const {
  int cost = 0, count = 0, least_other = kNever;
  NameSet left = condition.required;
  work -= std::ssize(exits.list) * kWorkOfAnExit;
  for (const Exit& exit : exits.list) {
    if (exit.op != GrammarOp::kKey && exit.op != GrammarOp::kOtherKey) continue;
    int member = kNever;
    const auto colon = exits_of(exit.to, work);
    for (const Exit& call : colon->list) {
      if (call.op != GrammarOp::kCall) continue;
      const auto value = value_costs_.find(call.to);
      if (value != value_costs_.end()) member = sum(value->second, 1);
    }
    member = sum(member, static_cast<int>(exit.path.size()) + 1);  // with a comma
    const int bit = exit.op == GrammarOp::kKey ? action_of(exit).result : -1;
    if (bit < 0 || !has_bit(condition.required, bit)) {
      least_other = std::min(least_other, member);
      continue;
    }
    if (!has_bit(left, bit)) continue;  // under another alternative; the nearest came first
    left[static_cast<std::size_t>(bit) / 32] &= ~(1u << bit % 32);
    cost = sum(cost, member);
    ++count;
  }
  if (left != NameSet{}) return kNever;
  return sum(cost, times(std::max(0, condition.min - count), least_other));
}

int ClosingText::cost_of_items(const Exits& exits, const Push& push,
                               const GrammarCondition& condition, long& work) const {
  if (condition.min <= 0) return 0;
  const int first = least_cost(exits);
  if (condition.min == 1) return first;
  const std::uint16_t after = grammar_.next_states[push.second];
  if (after == kDeadGrammarState) return kNever;
  const auto behind = exits_of(after, work);
  int next = kNever;
  for (const Exit& exit : behind->list) {
    if (exit.op != GrammarOp::kComma) continue;
    const auto value = value_costs_.find(exit.to);
    if (value != value_costs_.end()) next = std::min(next, sum(value->second, 1));
  }
  return sum(first, times(condition.min - 1, next));
}

// ---- the text

// Whether it is required by the alternative that lacks least.
bool ClosingText::is_wanted(const Exit& key, const GrammarRow& row) const {
  const GrammarFrame& frame = row.frames[row.depth];
  const GrammarAction& action = action_of(key);
  const GrammarCondition* target = nullptr;
  for (int i = 0; i < action.num_conditions; ++i) {
    const GrammarCondition& condition =
        grammar_.conditions[static_cast<std::size_t>(action.first_condition + i)];
    const int missing = num_missing(condition, frame);
    if (condition.max >= 0 && frame.count + missing > condition.max) continue;
    if (target == nullptr || missing < num_missing(*target, frame)) target = &condition;
  }
  return target != nullptr && has_bit(target->required, action.result);
}

// The lower the sooner.
int ClosingText::rank(const Exit& exit, const GrammarRow& row) const {
  const int length = static_cast<int>(exit.path.size());
  const GrammarAction& action = action_of(exit);
  switch (exit.op) {
    case GrammarOp::kNone:
      return row.depth == 0 ? length : kNever;
    case GrammarOp::kClose:
      return kEnd + length;
    case GrammarOp::kReturn:
    case GrammarOp::kRedo:
    case GrammarOp::kCall:
    case GrammarOp::kComma:
      return length;
    case GrammarOp::kStringEnd:
      return length + std::max(0, action.min - exit.chars.in(row));
    case GrammarOp::kPush:
      return sum(length, known_cost({exit.to, action.table}));
    case GrammarOp::kKey:
      if (has_bit(row.frames[row.depth].seen, action.result)) return kNever;
      return is_wanted(exit, row) ? length : kUnwantedName + length;
    case GrammarOp::kOtherKey:
      return kOtherName + length;
    default:
      return kNever;
  }
}

// A string that is too short is filled up where a character may be repeated.
std::optional<std::string> ClosingText::text_of(const Exit& exit, const Exits& exits,
                                                const GrammarRow& row, long& work) const {
  const int missing = action_of(exit).min - exit.chars.in(row);
  if (exit.op != GrammarOp::kStringEnd || missing <= 0) return exit.path;
  if (!exits.loop) return std::nullopt;
  const auto behind = exits_of(exits.loop->state, work);
  for (const Exit& end : behind->list) {
    if (end.action != exit.action) continue;
    const int count = std::max(0, action_of(exit).min - exits.loop->chars.in(row)-end.chars.num);
    if (static_cast<std::size_t>(count) > kMaxClosingBytes) return std::nullopt;
    return exits.loop->path +
           std::string(static_cast<std::size_t>(count), static_cast<char>(exits.loop->byte)) +
           end.path;
  }
  return std::nullopt;
}

bool ClosingText::take(const Exit& exit, const std::string& text, GrammarRow& row) const {
  for (const char byte : text) {
    if (!advance(grammar_, row, static_cast<std::uint8_t>(byte))) return false;
  }
  if (exit.op != GrammarOp::kRedo) return true;
  // The number ends with whatever comes next.
  row.state = grammar_.next_states[row.frames[row.depth].next + action_of(exit).result];
  row.length = 0;
  return row.state != kDeadGrammarState;
}

std::optional<std::vector<std::string>> ClosingText::find(const GrammarRow& begin,
                                                          long& work) const {
  GrammarRow row = begin;
  std::vector<std::string> pieces;
  std::size_t num_bytes = 0;
  bool behind_name = false;
  while (!may_end(grammar_, row)) {
    const auto exits = exits_of(row.state, work);
    work -= (std::ssize(exits->list) + 1) * kWorkOfAnExit;
    if (work <= 0) return std::nullopt;
    std::vector<std::pair<int, const Exit*>> ranked;
    for (const Exit& exit : exits->list) {
      const int r = rank(exit, row);
      if (r < kNever) ranked.emplace_back(r, &exit);
    }
    std::sort(ranked.begin(), ranked.end());  // of equals the one that stands first in the list
    const Exit* taken = nullptr;
    for (const auto& [r, exit] : ranked) {
      const std::optional<std::string> text = text_of(*exit, *exits, row, work);
      GrammarRow next = row;
      if (!text || !take(*exit, *text, next)) continue;
      row = next;
      num_bytes += text->size() + 1;
      work -= 4 * std::ssize(*text);
      if (behind_name) {
        pieces.back() += *text;
      } else if (!text->empty()) {
        pieces.push_back(*text);
      }
      taken = exit;
      break;
    }
    if (taken == nullptr || num_bytes > kMaxClosingBytes) return std::nullopt;
    behind_name = taken->op == GrammarOp::kKey || taken->op == GrammarOp::kOtherKey;
  }
  return pieces;
}

}  // namespace gapless
