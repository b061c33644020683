#include "grammar/name_states.h"

#include <algorithm>

#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"

namespace gapless {
namespace {

// Steps of making a node's states.
constexpr long kWorkOfANode = 20;

bool is_plain(std::uint8_t byte) {
  return byte != '"' && byte != '\\';
}

}  // namespace

Status NameStates::set_names(const std::map<std::string, int>& bits, ByteDfa languages) {
  languages_ = std::move(languages);
  for (const auto& [name, bit] : bits) {
    if (!tree_.add(name)) {
      return make_error(StatusCode::kResourceExhausted,
                        "properties: names that differ in more than {} characters",
                        kMaxGrammarStates);
    }
  }
  language_of_ = {languages_.empty() ? ByteDfa::kDead : 0};
  for (int i = 1; i < tree_.size(); ++i) {
    const StringTree::Node& node = tree_.node(i);
    language_of_.push_back(
        languages_.step(language_of_[static_cast<std::size_t>(node.parent)], node.byte));
  }
  return ok_status();
}

// What must hold where only these may follow.
GrammarAction NameStates::may_follow(const GrammarAction& room, const Ways& ways) {
  if (ways.others && !builder_.is_bounded(room)) return {};
  GrammarAction action = room;
  action.op = GrammarOp::kName;
  action.result = builder_.name_set(ways.names);
  action.table = ways.others ? 1 : 0;
  return action;
}

// The states of the names that are allowed now.
class NameStates::Adder {
 public:
  Adder(NameStates& names, const AllowedNames& allowed, const GrammarAction& room)
      : names_(names),
        builder_(names.builder_),
        allowed_(allowed),
        room_(room),
        others_(other_names()),
        ways_(ways_of_nodes()),
        // No declared name has a control character.
        strings_(builder_, others_, /*on_char=*/{},
                 /*on_control=*/names.may_follow(room, {.names = {}, .others = true}),
                 /*any_escape=*/false) {}

  NameStart add() {
    if (!lives(0)) return {};
    states_.assign(ways_.size(), kNoBuildState);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (lives(static_cast<int>(i))) states_[i] = builder_.add_state();
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (states_[i] != kNoBuildState) add_edges(static_cast<int>(i));
    }
    strings_.fill([this](std::int32_t q, BuildState state) { add_other_end(q, state); });
    return {.state = states_.front(), .may_begin = names_.may_follow(room_, ways_.front())};
  }

 private:
  const StringTree::Node& node(int number) const { return names_.tree_.node(number); }
  const Ways& ways(int number) const { return ways_[static_cast<std::size_t>(number)]; }
  BuildState state(int number) const { return states_[static_cast<std::size_t>(number)]; }
  bool lives(int number) const { return ways(number) != Ways(); }

  // The languages without the states from which no name that is allowed can end. They keep their numbers.
  ByteDfa other_names() const {
    if (allowed_.others.empty()) return {};
    ByteDfa dfa = names_.languages_;
    for (LabelSet& labels : dfa.labels) {
      if (!allowed_.others.contains(labels)) labels = 0;
    }
    const std::vector<char> lives = living_states(dfa);
    for (std::int32_t& to : dfa.next) {
      if (to != ByteDfa::kDead && lives[static_cast<std::size_t>(to)] == 0) to = ByteDfa::kDead;
    }
    return dfa;
  }

  // Of each state of others_, the bytes that lead on.
  std::vector<int> bytes_that_lead_on() const {
    std::vector<int> bytes_of_class(static_cast<std::size_t>(others_.num_classes), 0);
    for (const std::uint8_t byte_class : others_.class_of) ++bytes_of_class[byte_class];
    std::vector<int> num_bytes(others_.labels.size(), 0);
    for (std::size_t i = 0; i < others_.next.size(); ++i) {
      const std::size_t q = i / bytes_of_class.size(), c = i % bytes_of_class.size();
      if (others_.next[i] != ByteDfa::kDead) num_bytes[q] += bytes_of_class[c];
    }
    return num_bytes;
  }

  // The state of others_ where the node's beginning stands; kDead: no other name goes on so.
  std::int32_t other(int number) const {
    return others_.empty() ? ByteDfa::kDead : names_.language_of_[static_cast<std::size_t>(number)];
  }

  std::vector<Ways> ways_of_nodes() const {
    const std::vector<int> num_bytes = bytes_that_lead_on();
    std::vector<Ways> ways(names_.language_of_.size());
    // Of each node, its children that are among the bytes that lead on.
    std::vector<int> num_on_tree(ways.size(), 0);
    for (std::size_t i = ways.size(); i-- > 0;) {
      const StringTree::Node& here = node(static_cast<int>(i));
      const std::int32_t q = other(static_cast<int>(i));
      if (q != ByteDfa::kDead) {
        const auto at = static_cast<std::size_t>(q);
        ways[i].others |= num_bytes[at] > num_on_tree[i];
        ways[i].others |= here.string < 0 && allowed_.others.contains(others_.labels[at]);
      }
      if (here.string >= 0 && allowed_.declared[static_cast<std::size_t>(here.string)]) {
        ways[i].names[static_cast<std::size_t>(here.string) / 32] |= 1u << here.string % 32;
      }
      if (here.parent < 0) continue;
      const auto parent = static_cast<std::size_t>(here.parent);
      add_ways(ways[i], ways[parent]);
      const std::int32_t from = other(here.parent);
      if (others_.step(from, here.byte) != ByteDfa::kDead) ++num_on_tree[parent];
    }
    return ways;
  }

  static void add_ways(const Ways& ways, Ways& to) {
    for (std::size_t i = 0; i < to.names.size(); ++i) to.names[i] |= ways.names[i];
    to.others |= ways.others;
  }

  void add_other_end(std::int32_t q, BuildState from) {
    const auto end = allowed_.others.find(others_.labels[static_cast<std::size_t>(q)]);
    if (end == allowed_.others.end()) return;
    builder_.add_edge(from, '"', end->second.to, end->second.action);
  }

  // Into a node. What holds of all that may follow was looked at where that was first so.
  GrammarAction on_enter(int child) {
    if (ways(child) == ways(node(child).parent)) return {};
    return names_.may_follow(room_, ways(child));
  }

  void add_edges(int number) {
    const StringTree::Node& here = node(number);
    const BuildState from = state(number);
    const std::int32_t q = other(number);
    // Other names leave the tree for a state of theirs; nearly always the same one, so that the node says only what differs.
    const bool has_base = q != ByteDfa::kDead && strings_.has_state(q);
    if (has_base) builder_.set_base(from, strings_.state(q));
    std::vector<std::uint8_t> children;
    for (int child = here.first_child; child >= 0; child = node(child).next_child) {
      const std::uint8_t byte = node(child).byte;
      children.push_back(byte);
      if (!is_plain(byte)) continue;
      if (lives(child)) {
        builder_.add_edge(from, byte, byte, state(child), on_enter(child));
      } else if (has_base) {
        builder_.forbid(from, byte);
      }
    }
    if (q != ByteDfa::kDead && !has_base) strings_.add_plain(q, from, children);
    add_end(here, q, has_base, from);
    add_escapes(number, q, has_base, from);
  }

  void add_end(const StringTree::Node& here, std::int32_t q, bool has_base, BuildState from) {
    if (here.string >= 0) {
      const std::optional<NameEnd>& end = allowed_.declared[static_cast<std::size_t>(here.string)];
      if (end) {
        builder_.add_edge(from, '"', end->to, end->action);
      } else if (has_base) {
        builder_.forbid(from, '"');
      }
    } else if (q != ByteDfa::kDead && !has_base) {
      add_other_end(q, from);
    }
  }

  void add_escapes(int number, std::int32_t q, bool has_base, BuildState from) {
    const StringTree::Node& here = node(number);
    bool on_tree = false;
    for (int child = here.first_child; child >= 0; child = node(child).next_child) {
      on_tree |= has_escape(node(child).byte);
    }
    BuildState escape = kNoBuildState;
    Ways escaped{.names = {}, .others = true};
    if (on_tree) {
      escape = add_escape_state(number, q, escaped);
    } else if (q != ByteDfa::kDead) {
      escape = strings_.escape_state(q);
    }
    if (escape == kNoBuildState) {
      if (on_tree && has_base) builder_.forbid(from, '\\');
      return;
    }
    const bool is_new = escaped != ways(number);
    const GrammarAction action = is_new ? names_.may_follow(room_, escaped) : GrammarAction();
    // The base's backslash has no action.
    if (!has_base || on_tree || action != GrammarAction()) {
      builder_.add_edge(from, '\\', escape, action);
    }
  }

  // Behind a backslash where some declared name goes on with a character that has an escape. `escaped`: what may come of it.
  BuildState add_escape_state(int number, std::int32_t q, Ways& escaped) {
    EscapeTargets targets;
    if (q != ByteDfa::kDead) targets = strings_.escape_targets(q);
    const StringTree::Node& here = node(number);
    for (int child = here.first_child; child >= 0; child = node(child).next_child) {
      if (has_escape(node(child).byte)) targets[node(child).byte] = EscapeTarget();
    }
    const auto is_there = [](const EscapeTarget& target) { return target.to != kNoBuildState; };
    escaped = {.names = {}, .others = std::any_of(targets.begin(), targets.end(), is_there)};
    for (int child = here.first_child; child >= 0; child = node(child).next_child) {
      if (!has_escape(node(child).byte) || !lives(child)) continue;
      targets[node(child).byte] = {.to = state(child), .action = on_enter(child)};
      add_ways(ways(child), escaped);
    }
    if (std::none_of(targets.begin(), targets.end(), is_there)) return kNoBuildState;
    return strings_.add_escape_state(targets);
  }

  NameStates& names_;
  GrammarBuilder& builder_;
  const AllowedNames& allowed_;
  const GrammarAction& room_;
  const ByteDfa others_;
  const std::vector<Ways> ways_;  // by node
  StringStates strings_;
  std::vector<BuildState> states_;  // by node; kNoBuildState: no name that is allowed goes on so
};

StatusOr<NameStart> NameStates::add(const AllowedNames& allowed, const GrammarAction& room) {
  const auto num_nodes = long{tree_.size()};
  GAPLESS_RETURN_IF_ERROR(
      CompileWork::spend(num_nodes * kWorkOfANode + std::ssize(languages_.next)));
  return Adder(*this, allowed, room).add();
}

}  // namespace gapless
