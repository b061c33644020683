#include "grammar/byte_dfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"

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
  explicit Determinizer(const std::vector<NfaState>& nfa) : nfa_(nfa), seen_(nfa.size(), 0) {}

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
    std::vector<std::int32_t> set;
    closure_of({start}, set);
    sets.number_of(set);
    // Where a set goes by the bytes of each class, before what is reached without a byte.
    std::vector<std::vector<std::int32_t>> targets(static_cast<std::size_t>(dfa.num_classes));
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (sets.size() > kMaxStringStates) return too_large();
      long work = dfa.num_classes;
      LabelSet labels = 0;
      for (const std::int32_t state : sets.at(i)) {
        labels |= at(state).labels;
        if (at(state).first > at(state).last) continue;
        const std::size_t first = dfa.class_of[at(state).first];
        const std::size_t last = dfa.class_of[at(state).last];
        for (std::size_t c = first; c <= last; ++c) targets[c].push_back(at(state).to);
        work += static_cast<long>(last - first) + 1;
      }
      dfa.labels.push_back(labels);
      for (std::size_t c = 0; c < targets.size(); ++c) {
        std::int32_t to = ByteDfa::kDead;
        if (c > 0 && targets[c] == targets[c - 1]) {
          to = dfa.next.back();
        } else if (!targets[c].empty()) {
          work += closure_of(targets[c], set);
          to = sets.number_of(set);
        }
        dfa.next.push_back(to);
      }
      for (std::vector<std::int32_t>& list : targets) list.clear();
      GAPLESS_RETURN_IF_ERROR(CompileWork::spend(work));
    }
    return trimmed(dfa);
  }

 private:
  const NfaState& at(std::int32_t state) const { return nfa_[static_cast<std::size_t>(state)]; }

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
  std::vector<std::int32_t> open_;
};

}  // namespace

ByteDfa trimmed(const ByteDfa& dfa, std::vector<std::int32_t>* kept) {
  const auto num_states = static_cast<std::size_t>(dfa.num_states());
  const auto num_classes = static_cast<std::size_t>(dfa.num_classes);
  // Who leads to a state: before[first[state]] up to before[first[state + 1]].
  std::vector<std::uint32_t> first(num_states + 1, 0);
  for (const std::int32_t to : dfa.next) {
    if (to != ByteDfa::kDead) ++first[static_cast<std::size_t>(to) + 1];
  }
  for (std::size_t i = 1; i <= num_states; ++i) first[i] += first[i - 1];
  std::vector<std::int32_t> before(first.back());
  std::vector<std::uint32_t> end(first.begin(), first.end() - 1);
  for (std::size_t state = 0; state < num_states; ++state) {
    for (std::size_t c = 0; c < num_classes; ++c) {
      const std::int32_t to = dfa.next[state * num_classes + c];
      if (to == ByteDfa::kDead) continue;
      before[end[static_cast<std::size_t>(to)]++] = static_cast<std::int32_t>(state);
    }
  }
  std::vector<char> lives(num_states, 0);
  std::vector<std::int32_t> open;
  for (std::size_t state = 0; state < num_states; ++state) {
    if (dfa.labels[state] == 0) continue;
    lives[state] = 1;
    open.push_back(static_cast<std::int32_t>(state));
  }
  while (!open.empty()) {
    const auto state = static_cast<std::size_t>(open.back());
    open.pop_back();
    for (std::uint32_t i = first[state]; i < first[state + 1]; ++i) {
      const auto source = static_cast<std::size_t>(before[i]);
      if (lives[source]) continue;
      lives[source] = 1;
      open.push_back(before[i]);
    }
  }
  ByteDfa out{.class_of = dfa.class_of, .num_classes = dfa.num_classes, .next = {}, .labels = {}};
  if (num_states == 0 || !lives[0]) return out;
  std::vector<std::int32_t> number(num_states, ByteDfa::kDead);
  std::int32_t count = 0;
  for (std::size_t state = 0; state < num_states; ++state) {
    if (!lives[state]) continue;
    number[state] = count++;
    if (kept != nullptr) kept->push_back(static_cast<std::int32_t>(state));
  }
  for (std::size_t state = 0; state < num_states; ++state) {
    if (!lives[state]) continue;
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
  return trimmed(dfa);
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

StatusOr<ByteDfa> intersection(const ByteDfa& a, const ByteDfa& b) {
  return product(a, b, [](LabelSet x, LabelSet y) { return y == 0 ? 0 : x; });
}

StatusOr<ByteDfa> difference(const ByteDfa& a, const ByteDfa& b) {
  return product(a, b, [](LabelSet x, LabelSet y) { return y == 0 ? x : 0; });
}

StatusOr<ByteDfa> labelled_union(std::span<const ByteDfa> parts) {
  GAPLESS_CHECK(!parts.empty() && parts.size() <= kMaxLabels);
  ByteDfa all = parts.front();
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

// Of a tree whose states come before their successors: equal ends become one.
ByteDfa with_shared_ends(const ByteDfa& tree) {
  const auto num_classes = static_cast<std::size_t>(tree.num_classes);
  const auto num_states = static_cast<std::size_t>(tree.num_states());
  std::vector<std::int32_t> kept(num_states);  // itself, or the equal one that stands for it
  std::map<std::vector<std::int32_t>, std::int32_t> known;
  std::vector<std::int32_t> row(num_classes + 1);
  for (std::size_t state = num_states; state-- > 0;) {
    for (std::size_t c = 0; c < num_classes; ++c) {
      const std::int32_t to = tree.next[state * num_classes + c];
      row[c] = to == ByteDfa::kDead ? to : kept[static_cast<std::size_t>(to)];
    }
    row[num_classes] = tree.labels[state] != 0 ? 1 : 0;
    kept[state] = known.emplace(row, static_cast<std::int32_t>(state)).first->second;
  }
  std::vector<std::int32_t> number(num_states, ByteDfa::kDead);
  ByteDfa out{.class_of = tree.class_of, .num_classes = tree.num_classes, .next = {}, .labels = {}};
  for (std::size_t state = 0; state < num_states; ++state) {
    if (kept[state] != static_cast<std::int32_t>(state)) continue;
    number[state] = out.num_states();
    out.labels.push_back(tree.labels[state]);
  }
  for (std::size_t state = 0; state < num_states; ++state) {
    if (number[state] == ByteDfa::kDead) continue;
    for (std::size_t c = 0; c < num_classes; ++c) {
      const std::int32_t to = tree.next[state * num_classes + c];
      out.next.push_back(
          to == ByteDfa::kDead
              ? to
              : number[static_cast<std::size_t>(kept[static_cast<std::size_t>(to)])]);
    }
  }
  return out;
}

}  // namespace

StatusOr<ByteDfa> dfa_of_strings(const std::set<std::string>& strings) {
  if (strings.empty()) return ByteDfa();
  ByteDfa dfa;
  std::array<bool, 257> starts_class{};
  for (const std::string& string : strings) {
    for (const char c : string) {
      const auto byte = static_cast<std::uint8_t>(c);
      starts_class[byte] = starts_class[std::size_t{byte} + 1] = true;
    }
  }
  number_classes(starts_class, dfa);
  const auto num_classes = static_cast<std::size_t>(dfa.num_classes);
  const auto add_state = [&] {
    dfa.labels.push_back(0);
    dfa.next.insert(dfa.next.end(), num_classes, ByteDfa::kDead);
    return static_cast<std::int32_t>(dfa.labels.size() - 1);
  };
  std::int32_t at = add_state();
  for (const std::string& string : strings) {
    GAPLESS_RETURN_IF_ERROR(CompileWork::spend(std::ssize(string) + 1));
    at = 0;
    for (const char c : string) {
      const std::size_t edge =
          static_cast<std::size_t>(at) * num_classes + dfa.class_of[static_cast<std::uint8_t>(c)];
      if (dfa.next[edge] == ByteDfa::kDead) {
        if (dfa.num_states() >= kMaxGrammarStates) {
          return make_error(StatusCode::kResourceExhausted,
                            "enum: strings that differ in more than {} characters",
                            kMaxGrammarStates);
        }
        const std::int32_t next = add_state();
        dfa.next[edge] = next;
      }
      at = dfa.next[edge];
    }
    dfa.labels[static_cast<std::size_t>(at)] = 1;
  }
  GAPLESS_RETURN_IF_ERROR(CompileWork::spend(std::ssize(dfa.next)));
  return with_shared_ends(dfa);
}

const ByteDfa& dfa_of_all_strings() {
  static const ByteDfa dfa = [] {
    const RegexPtr anything = regex_anything();
    return make_dfa(std::span(&anything, 1)).value();
  }();
  return dfa;
}

bool intersects(const ByteDfa& a, const ByteDfa& b) {
  const auto both = intersection(a, b);
  return !both.ok() || !both->empty();
}

}  // namespace gapless
