#include "grammar/byte_dfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"
#include "grammar/string_tree.h"

namespace gapless {
namespace {

Status too_large() {
  return make_error(StatusCode::kResourceExhausted,
                    "the automaton of a string has more than {} states", kMaxStringStates);
}

// Thompson's construction: states have one range of bytes out, or up to two ways without any.
struct NfaState {
  std::uint8_t first = 1, last = 0;  // first > last: none
  std::int32_t to = -1;
  std::int32_t epsilon[2] = {-1, -1};
  LabelSet labels = 0;
};

class NfaBuilder {
 public:
  // The automaton of the regex in front of `after`; ends in a state of its own.
  StatusOr<std::int32_t> build(const Regex& regex, std::int32_t after) {
    GAPLESS_RETURN_IF_ERROR(CompileWork::spend(1));
    switch (regex.kind) {
      case Regex::Kind::kSet:
        return build_set(regex.set, after);
      case Regex::Kind::kConcat: {
        std::int32_t state = after;
        for (auto part = regex.parts.rbegin(); part != regex.parts.rend(); ++part) {
          GAPLESS_ASSIGN_OR_RETURN(state, build(**part, state));
        }
        return state;
      }
      case Regex::Kind::kAlternate: {
        std::int32_t state = -1;
        for (const RegexPtr& part : regex.parts) {
          GAPLESS_ASSIGN_OR_RETURN(const std::int32_t way, build(*part, after));
          if (state < 0) {
            state = way;
          } else {
            GAPLESS_ASSIGN_OR_RETURN(state, either(way, state));
          }
        }
        return state;
      }
      case Regex::Kind::kRepeat:
        return build_repeat(regex, after);
      case Regex::Kind::kBegin:
      case Regex::Kind::kEnd:
        break;
    }
    return make_error(StatusCode::kInternal, "an anchor was left in a regular expression");
  }

  StatusOr<std::int32_t> add(NfaState state) {
    if (states_.size() >= kMaxRegexNodes) {
      return make_error(StatusCode::kResourceExhausted,
                        "a regular expression has more than {} parts", kMaxRegexNodes);
    }
    states_.push_back(state);
    return static_cast<std::int32_t>(states_.size() - 1);
  }
  StatusOr<std::int32_t> either(std::int32_t a, std::int32_t b) { return add({.epsilon = {a, b}}); }

  const std::vector<NfaState>& states() const { return states_; }

 private:
  StatusOr<std::int32_t> build_set(const CodePointSet& set, std::int32_t after) {
    std::int32_t state = -1;
    for (const CodePointRange& range : set.ranges()) {
      for (const Utf8Sequence& sequence : utf8_sequences(range)) {
        std::int32_t way = after;
        for (int i = sequence.length; i-- > 0;) {
          GAPLESS_ASSIGN_OR_RETURN(way, byte_range(sequence.bytes[i], way));
        }
        if (state < 0) {
          state = way;
        } else {
          GAPLESS_ASSIGN_OR_RETURN(state, either(way, state));
        }
      }
    }
    if (state < 0) return add({});  // no character at all: a dead end
    return state;
  }

  // Tails of UTF-8 sequences are alike: one state for each (range, successor).
  StatusOr<std::int32_t> byte_range(Utf8Sequence::ByteRange bytes, std::int32_t to) {
    const std::uint64_t key = std::uint64_t{bytes.first} << 40 | std::uint64_t{bytes.last} << 32 |
                              static_cast<std::uint32_t>(to);
    if (const auto found = ranges_.find(key); found != ranges_.end()) return found->second;
    GAPLESS_ASSIGN_OR_RETURN(const std::int32_t state,
                             add({.first = bytes.first, .last = bytes.last, .to = to}));
    ranges_.emplace(key, state);
    return state;
  }

  StatusOr<std::int32_t> build_repeat(const Regex& regex, std::int32_t after) {
    const Regex& part = *regex.parts.front();
    std::int32_t state = after;
    if (regex.max == Regex::kUnbounded) {
      GAPLESS_ASSIGN_OR_RETURN(const std::int32_t loop, add({}));
      GAPLESS_ASSIGN_OR_RETURN(const std::int32_t body, build(part, loop));
      states_[static_cast<std::size_t>(loop)].epsilon[0] = body;
      states_[static_cast<std::size_t>(loop)].epsilon[1] = after;
      state = loop;
    } else {
      for (int i = regex.min; i < regex.max; ++i) {
        GAPLESS_ASSIGN_OR_RETURN(const std::int32_t body, build(part, state));
        GAPLESS_ASSIGN_OR_RETURN(state, either(body, after));
      }
    }
    for (int i = 0; i < regex.min; ++i) {
      GAPLESS_ASSIGN_OR_RETURN(const std::int32_t before, build(part, state));
      if (before == state) break;  // the empty text, however often
      state = before;
    }
    return state;
  }

  std::vector<NfaState> states_;
  std::unordered_map<std::uint64_t, std::int32_t> ranges_;
};

// Sets of states as sorted lists, numbered in the order in which they are met.
class StateSets {
 public:
  std::int32_t number_of(const std::vector<std::int32_t>& set) {
    const auto [at, is_new] = numbers_.emplace(set, static_cast<std::int32_t>(sets_.size()));
    if (is_new) sets_.push_back(&at->first);
    return at->second;
  }
  std::size_t size() const { return sets_.size(); }
  const std::vector<std::int32_t>& at(std::size_t i) const { return *sets_[i]; }

 private:
  struct Hash {
    std::size_t operator()(const std::vector<std::int32_t>& set) const {
      std::size_t hash = 1469598103934665603u;
      for (const std::int32_t state : set)
        hash = (hash ^ static_cast<std::size_t>(state)) * 1099511628211u;
      return hash;
    }
  };
  std::unordered_map<std::vector<std::int32_t>, std::int32_t, Hash> numbers_;
  std::vector<const std::vector<std::int32_t>*> sets_;
};

class Determinizer {
 public:
  explicit Determinizer(const std::vector<NfaState>& nfa)
      : nfa_(nfa), seen_(nfa.size(), 0), number_of_one_(nfa.size(), -1) {}

  StatusOr<ByteDfa> run(std::int32_t start) {
    ByteDfa dfa;
    std::array<bool, 257> starts_class{};
    for (const NfaState& state : nfa_) {
      if (state.first > state.last) continue;
      starts_class[state.first] = true;
      starts_class[std::size_t{state.last} + 1] = true;
    }
    number_classes(starts_class, dfa);

    StateSets sets;
    closure_of({start}, set_);
    sets.number_of(set_);
    const auto num_classes = static_cast<std::size_t>(dfa.num_classes);
    // Neighbouring classes that no state of the set tells apart are one segment. Where it goes by the bytes of each, before what is
    // reached without a byte.
    std::vector<char> begins_segment(num_classes + 1);
    std::vector<std::size_t> segment_of(num_classes);
    std::vector<std::vector<std::int32_t>> targets;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (sets.size() > kMaxStringStates) return too_large();
      long work = dfa.num_classes;
      LabelSet labels = 0;
      std::fill(begins_segment.begin(), begins_segment.end(), 0);
      const auto each_range = [&](const auto& visit) {
        for (const std::int32_t state : sets.at(i)) {
          if (at(state).first > at(state).last) continue;
          visit(std::size_t{dfa.class_of[at(state).first]},
                std::size_t{dfa.class_of[at(state).last]}, at(state).to);
        }
      };
      each_range([&](std::size_t first, std::size_t last, std::int32_t) {
        begins_segment[first] = begins_segment[last + 1] = 1;
      });
      std::size_t num_segments = 0;
      for (std::size_t c = 0; c < num_classes; ++c) {
        if (c == 0 || begins_segment[c] != 0) ++num_segments;
        segment_of[c] = num_segments - 1;
      }
      if (targets.size() < num_segments) targets.resize(num_segments);
      for (std::size_t k = 0; k < num_segments; ++k) targets[k].clear();
      each_range([&](std::size_t first, std::size_t last, std::int32_t to) {
        for (std::size_t k = segment_of[first]; k <= segment_of[last]; ++k) {
          targets[k].push_back(to);
        }
        work += static_cast<long>(segment_of[last] - segment_of[first]) + 1;
      });
      for (const std::int32_t state : sets.at(i)) labels |= at(state).labels;
      dfa.labels.push_back(labels);
      for (std::size_t c = 0; c < num_classes; ++c) {
        const std::size_t k = segment_of[c];
        const bool is_known =
            c > 0 && (k == segment_of[c - 1] || targets[k] == targets[segment_of[c - 1]]);
        dfa.next.push_back(is_known ? dfa.next.back() : number_of(targets[k], sets, work));
      }
      GAPLESS_RETURN_IF_ERROR(CompileWork::spend(work));
    }
    return trimmed(std::move(dfa));
  }

 private:
  const NfaState& at(std::int32_t state) const { return nfa_[static_cast<std::size_t>(state)]; }

  // The number of what is reached from the targets without a byte. Most often there is one target, and it was met before.
  std::int32_t number_of(const std::vector<std::int32_t>& targets, StateSets& sets, long& work) {
    if (targets.empty()) return ByteDfa::kDead;
    std::int32_t* const known =
        targets.size() == 1 ? &number_of_one_[static_cast<std::size_t>(targets.front())] : nullptr;
    if (known != nullptr && *known >= 0) return *known;
    work += closure_of(targets, set_);
    const std::int32_t number = sets.number_of(set_);
    if (known != nullptr) *known = number;
    return number;
  }

  // What is reached from `from` without a byte; only states that say something themselves. Returns how
  // many were looked at.
  long closure_of(const std::vector<std::int32_t>& from, std::vector<std::int32_t>& set) {
    ++generation_;
    set.clear();
    open_ = from;
    long num_seen = 0;
    while (!open_.empty()) {
      const std::int32_t s = open_.back();
      open_.pop_back();
      if (s < 0 || seen_[static_cast<std::size_t>(s)] == generation_) continue;
      seen_[static_cast<std::size_t>(s)] = generation_;
      ++num_seen;
      if (at(s).first <= at(s).last || at(s).labels != 0) set.push_back(s);
      open_.push_back(at(s).epsilon[0]);
      open_.push_back(at(s).epsilon[1]);
    }
    std::sort(set.begin(), set.end());
    return num_seen + static_cast<long>(set.size());
  }

  const std::vector<NfaState>& nfa_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t generation_ = 0;
  std::vector<std::int32_t> open_, set_;
  std::vector<std::int32_t> number_of_one_;  // by the only target; < 0: not met
};

}  // namespace

std::vector<char> living_states(const ByteDfa& dfa) {
  const auto num_states = static_cast<std::size_t>(dfa.num_states());
  const auto num_classes = static_cast<std::size_t>(dfa.num_classes);
  std::vector<char> lives(num_states, 0);
  const auto leads_on = [&](std::size_t state) {
    const auto row = dfa.next.begin() + static_cast<std::ptrdiff_t>(state * num_classes);
    return std::any_of(row, row + static_cast<std::ptrdiff_t>(num_classes), [&](std::int32_t to) {
      return to != ByteDfa::kDead && lives[static_cast<std::size_t>(to)] != 0;
    });
  };
  // Successors have larger numbers as a rule, so this finds nearly all.
  std::vector<std::int32_t> unknown;
  for (std::size_t state = num_states; state-- > 0;) {
    lives[state] = dfa.labels[state] != 0 || leads_on(state) ? 1 : 0;
    if (lives[state] == 0) unknown.push_back(static_cast<std::int32_t>(state));
  }
  // Which of the others lead to a state: before[first[state]] up to before[first[state + 1]].
  std::vector<std::uint32_t> first(num_states + 1, 0);
  const auto each_edge = [&](const auto& visit) {
    for (const std::int32_t state : unknown) {
      for (std::size_t c = 0; c < num_classes; ++c) {
        const std::int32_t to = dfa.next[static_cast<std::size_t>(state) * num_classes + c];
        if (to != ByteDfa::kDead) visit(state, static_cast<std::size_t>(to));
      }
    }
  };
  each_edge([&](std::int32_t, std::size_t to) { ++first[to + 1]; });
  for (std::size_t i = 1; i <= num_states; ++i) first[i] += first[i - 1];
  std::vector<std::int32_t> before(first.back());
  std::vector<std::uint32_t> end(first.begin(), first.end() - 1);
  each_edge([&](std::int32_t state, std::size_t to) { before[end[to]++] = state; });
  std::vector<std::int32_t> open;
  const auto revive = [&](std::int32_t state) {
    if (lives[static_cast<std::size_t>(state)] != 0) return;
    lives[static_cast<std::size_t>(state)] = 1;
    open.push_back(state);
  };
  for (const std::int32_t state : unknown) {
    if (leads_on(static_cast<std::size_t>(state))) revive(state);
  }
  while (!open.empty()) {
    const auto state = static_cast<std::size_t>(open.back());
    open.pop_back();
    for (std::uint32_t i = first[state]; i < first[state + 1]; ++i) revive(before[i]);
  }
  return lives;
}

ByteDfa trimmed(ByteDfa dfa) {
  const std::vector<char> lives = living_states(dfa);
  if (std::find(lives.begin(), lives.end(), 0) == lives.end()) return dfa;
  const auto num_classes = static_cast<std::size_t>(dfa.num_classes);
  ByteDfa out{.class_of = dfa.class_of, .num_classes = dfa.num_classes, .next = {}, .labels = {}};
  if (lives[0] == 0) return out;
  std::vector<std::int32_t> number(lives.size(), ByteDfa::kDead);
  std::int32_t count = 0;
  for (std::size_t state = 0; state < lives.size(); ++state) {
    if (lives[state] != 0) number[state] = count++;
  }
  out.next.reserve(static_cast<std::size_t>(count) * num_classes);
  for (std::size_t state = 0; state < lives.size(); ++state) {
    if (lives[state] == 0) continue;
    out.labels.push_back(dfa.labels[state]);
    for (std::size_t c = 0; c < num_classes; ++c) {
      const std::int32_t to = dfa.next[state * num_classes + c];
      out.next.push_back(to == ByteDfa::kDead ? to : number[static_cast<std::size_t>(to)]);
    }
  }
  return out;
}

namespace {

// Walks both at once, a string that one of them lacks included. combine(a, b) of their labels is the
// result's; 0: not in it.
template <typename Combine>
StatusOr<ByteDfa> product(const ByteDfa& a, const ByteDfa& b, Combine combine) {
  ByteDfa dfa;
  std::array<bool, 257> starts_class{};
  for (std::size_t byte = 1; byte < 256; ++byte) {
    starts_class[byte] =
        a.class_of[byte] != a.class_of[byte - 1] || b.class_of[byte] != b.class_of[byte - 1];
  }
  number_classes(starts_class, dfa);
  const std::vector<std::uint8_t> bytes = byte_of_each_class(dfa);
  using Pair = std::pair<std::int32_t, std::int32_t>;
  std::map<Pair, std::int32_t> numbers;
  std::vector<Pair> pairs;
  const auto number_of = [&](Pair pair) {
    const auto [at, is_new] = numbers.emplace(pair, static_cast<std::int32_t>(pairs.size()));
    if (is_new) pairs.push_back(pair);
    return at->second;
  };
  const auto labels_of = [](const ByteDfa& d, std::int32_t state) {
    return state == ByteDfa::kDead ? LabelSet{0} : d.labels[static_cast<std::size_t>(state)];
  };
  number_of({a.empty() ? ByteDfa::kDead : 0, b.empty() ? ByteDfa::kDead : 0});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > kMaxStringStates) return too_large();
    GAPLESS_RETURN_IF_ERROR(CompileWork::spend(dfa.num_classes));
    const Pair pair = pairs[i];
    dfa.labels.push_back(combine(labels_of(a, pair.first), labels_of(b, pair.second)));
    for (const std::uint8_t byte : bytes) {
      const Pair to{a.step(pair.first, byte), b.step(pair.second, byte)};
      const bool dead = to.first == ByteDfa::kDead && to.second == ByteDfa::kDead;
      dfa.next.push_back(dead ? ByteDfa::kDead : number_of(to));
    }
  }
  return trimmed(std::move(dfa));
}

}  // namespace

void number_classes(const std::array<bool, 257>& starts_class, ByteDfa& dfa) {
  int current = -1;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 0 || starts_class[static_cast<std::size_t>(byte)]) ++current;
    dfa.class_of[static_cast<std::size_t>(byte)] = static_cast<std::uint8_t>(current);
  }
  dfa.num_classes = current + 1;
}

std::vector<std::uint8_t> byte_of_each_class(const ByteDfa& dfa) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(dfa.num_classes));
  for (int byte = 255; byte >= 0; --byte) {
    bytes[dfa.class_of[static_cast<std::size_t>(byte)]] = static_cast<std::uint8_t>(byte);
  }
  return bytes;
}

LabelSet ByteDfa::match(std::string_view bytes) const {
  if (empty()) return 0;
  std::int32_t state = 0;
  for (const char byte : bytes) state = step(state, static_cast<std::uint8_t>(byte));
  return state == kDead ? 0 : labels[static_cast<std::size_t>(state)];
}

StatusOr<ByteDfa> make_dfa(std::span<const RegexPtr> regexes) {
  GAPLESS_CHECK(!regexes.empty() && regexes.size() <= kMaxLabels);
  NfaBuilder builder;
  std::int32_t start = -1;
  for (std::size_t i = 0; i < regexes.size(); ++i) {
    GAPLESS_ASSIGN_OR_RETURN(const std::int32_t end, builder.add({.labels = LabelSet{1} << i}));
    GAPLESS_ASSIGN_OR_RETURN(const std::int32_t way, builder.build(*regexes[i], end));
    if (start < 0) {
      start = way;
    } else {
      GAPLESS_ASSIGN_OR_RETURN(start, builder.either(way, start));
    }
  }
  return Determinizer(builder.states()).run(start);
}

ByteDfa shared_dfa(const RegexPtr& regex) {
  const CompileWork own(kMaxGrammarWork);
  return make_dfa(std::span(&regex, 1)).value();
}

StatusOr<ByteDfa> intersection(const ByteDfa& a, const ByteDfa& b) {
  return product(a, b, [](LabelSet x, LabelSet y) { return y == 0 ? 0 : x; });
}

StatusOr<ByteDfa> difference(const ByteDfa& a, const ByteDfa& b) {
  return product(a, b, [](LabelSet x, LabelSet y) { return y == 0 ? x : 0; });
}

StatusOr<ByteDfa> labelled_union(std::vector<ByteDfa> parts) {
  GAPLESS_CHECK(!parts.empty() && parts.size() <= kMaxLabels);
  ByteDfa all = std::move(parts.front());
  for (LabelSet& labels : all.labels) labels = labels != 0 ? 1 : 0;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const LabelSet bit = LabelSet{1} << i;
    GAPLESS_ASSIGN_OR_RETURN(all, product(all, parts[i], [bit](LabelSet x, LabelSet y) {
                               return x | (y != 0 ? bit : 0);
                             }));
  }
  return all;
}

namespace {

// Nodes from which the same strings go on become one state.
class SharedEnds {
 public:
  explicit SharedEnds(const StringTree& tree)
      : tree_(tree), equal_(static_cast<std::size_t>(tree.size())) {
    const auto hash = [this](int number) { return hash_of(number); };
    const auto are_same = [this](int a, int b) { return are_equal(a, b); };
    std::unordered_set<int, decltype(hash), decltype(are_same)> known(equal_.size(), hash,
                                                                      are_same);
    for (int i = tree_.size(); i-- > 0;) {
      equal_[static_cast<std::size_t>(i)] = *known.insert(i).first;
    }
  }

  ByteDfa dfa(ByteDfa classes) const {
    ByteDfa dfa = std::move(classes);
    const auto num_classes = static_cast<std::size_t>(dfa.num_classes);
    std::vector<std::int32_t> number(equal_.size(), ByteDfa::kDead);
    for (int i = 0; i < tree_.size(); ++i) {
      if (equal(i) != i) continue;
      number[static_cast<std::size_t>(i)] = dfa.num_states();
      dfa.labels.push_back(tree_.node(i).string >= 0 ? 1 : 0);
    }
    dfa.next.assign(dfa.labels.size() * num_classes, ByteDfa::kDead);
    for (std::size_t i = 0; i < equal_.size(); ++i) {
      if (number[i] == ByteDfa::kDead) continue;
      const auto row = static_cast<std::size_t>(number[i]) * num_classes;
      for (int child = tree_.node(static_cast<int>(i)).first_child; child >= 0;
           child = tree_.node(child).next_child) {
        dfa.next[row + dfa.class_of[tree_.node(child).byte]] =
            number[static_cast<std::size_t>(equal(child))];
      }
    }
    return dfa;
  }

 private:
  // Itself, or the node that stands for it.
  int equal(int number) const { return equal_[static_cast<std::size_t>(number)]; }

  // Whether the same strings go on from both, where that is known of their children.
  bool are_equal(int a, int b) const {
    const StringTree::Node &one = tree_.node(a), &other = tree_.node(b);
    if ((one.string >= 0) != (other.string >= 0)) return false;
    int x = one.first_child, y = other.first_child;
    for (; x >= 0 && y >= 0; x = tree_.node(x).next_child, y = tree_.node(y).next_child) {
      if (tree_.node(x).byte != tree_.node(y).byte || equal(x) != equal(y)) return false;
    }
    return x == y;
  }

  std::size_t hash_of(int number) const {
    const StringTree::Node& node = tree_.node(number);
    std::size_t hash = node.string >= 0 ? 1 : 0;
    for (int child = node.first_child; child >= 0; child = tree_.node(child).next_child) {
      hash = (hash ^ tree_.node(child).byte) * 1099511628211u;
      hash = (hash ^ static_cast<std::size_t>(equal(child))) * 1099511628211u;
    }
    return hash;
  }

  const StringTree& tree_;
  std::vector<int> equal_;
};

}  // namespace

StatusOr<ByteDfa> dfa_of_strings(const std::set<std::string>& strings) {
  if (strings.empty()) return ByteDfa();
  ByteDfa classes;
  StringTree tree;
  std::array<bool, 257> starts_class{};
  for (const std::string& string : strings) {
    GAPLESS_RETURN_IF_ERROR(CompileWork::spend(std::ssize(string) + 1));
    if (!tree.add(string)) {
      return make_error(StatusCode::kResourceExhausted,
                        "enum: strings that differ in more than {} characters", kMaxGrammarStates);
    }
    for (const char c : string) {
      const auto byte = static_cast<std::uint8_t>(c);
      starts_class[byte] = starts_class[std::size_t{byte} + 1] = true;
    }
  }
  number_classes(starts_class, classes);
  GAPLESS_RETURN_IF_ERROR(CompileWork::spend(long{tree.size()} * (20 + classes.num_classes)));
  return SharedEnds(tree).dfa(std::move(classes));
}

const ByteDfa& dfa_of_all_strings() {
  static const ByteDfa dfa = shared_dfa(regex_anything());
  return dfa;
}

bool intersects(const ByteDfa& a, const ByteDfa& b) {
  const auto both = intersection(a, b);
  return !both.ok() || !both->empty();
}

}  // namespace gapless
