#include "grammar/string_states.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace gapless {
namespace {

// Characters that a JSON string must escape, besides the quote and the backslash.
constexpr int kNumControls = 0x20;
constexpr std::uint8_t kFirstContinuation = 0x80, kLastContinuation = 0xBF;

struct ShortEscape {
  char letter;
  std::uint8_t byte;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                         {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};

bool has_short_escape(std::uint8_t byte) {
  for (const ShortEscape& escape : kShortEscapes) {
    if (escape.byte == byte) return true;
  }
  return false;
}

void add_hex(GrammarBuilder& builder, BuildState from, int first, int last, BuildState to,
             const GrammarAction& action = {}) {
  const auto add = [&](int low, int high, int zero, char base) {
    if (low > high) return;
    builder.add_edge(from, static_cast<std::uint8_t>(base + low - zero),
                     static_cast<std::uint8_t>(base + high - zero), to, action);
  };
  add(first, last < 9 ? last : 9, 0, '0');
  add(first > 10 ? first : 10, last, 10, 'a');
  add(first > 10 ? first : 10, last, 10, 'A');
}

}  // namespace

bool has_escape(std::uint8_t byte) {
  return byte < kNumControls || has_short_escape(byte);
}

StringStates::StringStates(GrammarBuilder& builder, const ByteDfa& dfa,
                           const GrammarAction& on_char, const GrammarAction& on_control,
                           bool any_escape)
    : builder_(builder),
      dfa_(dfa),
      on_char_(on_char),
      on_control_(on_control),
      any_escape_(any_escape),
      runs_(plain_runs(dfa)),
      escape_classes_(escape_classes(dfa)),
      states_(static_cast<std::size_t>(dfa.num_states()), kNoBuildState) {}

BuildState StringStates::state(std::int32_t q) {
  BuildState& known = states_[static_cast<std::size_t>(q)];
  if (known == kNoBuildState) {
    known = builder_.add_state();
    made_.push_back(q);
  }
  return known;
}

std::vector<StringStates::Run> StringStates::plain_runs(const ByteDfa& dfa) {
  // Around the quote and the backslash; continuation bytes begin no character.
  struct Part {
    std::uint8_t first, last;
    bool begins_character;
  };
  constexpr Part kParts[] = {{0x20, '"' - 1, true},
                             {'"' + 1, '\\' - 1, true},
                             {'\\' + 1, kFirstContinuation - 1, true},
                             {kFirstContinuation, kLastContinuation, false},
                             {kLastContinuation + 1, 0xFF, true}};
  std::vector<Run> runs;
  for (const Part& part : kParts) {
    for (int byte = part.first; byte <= part.last; ++byte) {
      const auto at = static_cast<std::uint8_t>(byte);
      if (byte > part.first && runs.back().byte_class == dfa.class_of[at]) {
        runs.back().last = at;
      } else {
        runs.push_back({at, at, dfa.class_of[at], part.begins_character});
      }
    }
  }
  return runs;
}

std::vector<std::uint8_t> StringStates::escape_classes(const ByteDfa& dfa) {
  std::vector<std::uint8_t> classes;
  for (int byte = 0; byte < 256; ++byte) {
    if (!has_escape(static_cast<std::uint8_t>(byte))) continue;
    const std::uint8_t byte_class = dfa.class_of[static_cast<std::size_t>(byte)];
    if (classes.empty() || classes.back() != byte_class) classes.push_back(byte_class);
  }
  return classes;
}

// Neighbours that lead to the same state are one edge.
void StringStates::add_plain(std::int32_t q, BuildState from,
                             std::span<const std::uint8_t> without) {
  for (std::size_t i = 0; i < runs_.size();) {
    const Run& run = runs_[i];
    const std::int32_t to = step(q, run.byte_class);
    int first = run.first, last = run.last;
    for (++i;
         i < runs_.size() && runs_[i].first == last + 1 &&
         runs_[i].begins_character == run.begins_character && step(q, runs_[i].byte_class) == to;
         ++i) {
      last = runs_[i].last;
    }
    if (to == ByteDfa::kDead) continue;
    const auto add = [&](int begin, int end) {
      if (begin > end) return;
      builder_.add_edge(from, static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(end),
                        state(to), run.begins_character ? on_char_ : GrammarAction());
    };
    for (const std::uint8_t byte : without) {
      if (byte < first || byte > last) continue;
      add(first, byte - 1);
      first = byte + 1;
    }
    add(first, last);
  }
}

BuildState StringStates::escape_state(std::int32_t q) {
  std::vector<std::int32_t> key;
  key.reserve(escape_classes_.size() + 1);
  for (const std::uint8_t byte_class : escape_classes_) key.push_back(step(q, byte_class));
  const auto is_dead = [](std::int32_t to) { return to == ByteDfa::kDead; };
  if (std::all_of(key.begin(), key.end(), is_dead)) return kNoBuildState;
  if (any_escape_) key.push_back(q);  // any character comes back to q
  const auto [at, is_new] = escapes_.emplace(std::move(key), kNoBuildState);
  if (!is_new) return at->second;
  at->second = add_escape_state(escape_targets(q));
  if (any_escape_) add_any_escape(q, at->second);
  return at->second;
}

EscapeTargets StringStates::escape_targets(std::int32_t q) {
  EscapeTargets targets;
  for (std::size_t byte = 0; byte < targets.size(); ++byte) {
    if (!has_escape(static_cast<std::uint8_t>(byte))) continue;
    const std::int32_t to = step(q, dfa_.class_of[byte]);
    if (to != ByteDfa::kDead) targets[byte].to = state(to);
  }
  return targets;
}

BuildState StringStates::add_escape_state(const EscapeTargets& targets) {
  const BuildState escape = builder_.add_state();
  for (const ShortEscape& short_escape : kShortEscapes) {
    const EscapeTarget& target = targets[short_escape.byte];
    if (target.to == kNoBuildState) continue;
    builder_.add_edge(escape, short_escape.letter, target.to, target.action);
  }
  if (!any_escape_) add_control_escapes(targets, escape);
  return escape;
}

// \u00XX of control characters that have no short escape.
void StringStates::add_control_escapes(const EscapeTargets& targets, BuildState escape) {
  BuildState halves[2] = {kNoBuildState, kNoBuildState};
  for (int byte = 0; byte < kNumControls; ++byte) {
    const EscapeTarget& target = targets[static_cast<std::size_t>(byte)];
    if (target.to == kNoBuildState || has_short_escape(static_cast<std::uint8_t>(byte))) continue;
    BuildState& half = halves[byte / 16];
    if (half == kNoBuildState) half = builder_.add_state();
    add_hex(builder_, half, byte % 16, byte % 16, target.to, target.action);
  }
  if (halves[0] == kNoBuildState && halves[1] == kNoBuildState) return;
  const BuildState u = builder_.add_state(), zero = builder_.add_state();
  const BuildState zeros = builder_.add_state();
  builder_.add_edge(escape, 'u', u, on_control_);
  builder_.add_edge(u, '0', zero);
  builder_.add_edge(zero, '0', zeros);
  for (int i = 0; i < 2; ++i) {
    if (halves[i] != kNoBuildState) add_hex(builder_, zeros, i, i, halves[i]);
  }
}

// Any \uXXXX, surrogates in pairs only. Digits of the first four: one, two, three.
void StringStates::add_any_escape(std::int32_t q, BuildState escape) {
  const auto add = [this] { return builder_.add_state(); };
  const auto hex = [this](BuildState from, int first, int last, BuildState to) {
    add_hex(builder_, from, first, last, to);
  };
  const BuildState u = add(), one = add(), two = add(), three = add(), d = add();
  builder_.add_edge(escape, 'u', u);
  hex(u, 0, 12, one);
  hex(u, 14, 15, one);
  hex(u, 13, 13, d);
  hex(one, 0, 15, two);
  hex(d, 0, 7, two);  // U+D000 to U+D7FF
  hex(two, 0, 15, three);
  add_hex(builder_, three, 0, 15, state(q));
  // The first half of a pair, U+D800 to U+DBFF, and the second, U+DC00 to U+DFFF.
  const BuildState high_two = add(), high_three = add(), pair = add(), pair_u = add();
  const BuildState low = add(), low_one = add(), low_two = add(), low_three = add();
  hex(d, 8, 11, high_two);
  hex(high_two, 0, 15, high_three);
  hex(high_three, 0, 15, pair);
  builder_.add_edge(pair, '\\', pair_u);
  builder_.add_edge(pair_u, 'u', low);
  hex(low, 13, 13, low_one);
  hex(low_one, 12, 15, low_two);
  hex(low_two, 0, 15, low_three);
  add_hex(builder_, low_three, 0, 15, state(q));
}

}  // namespace gapless
