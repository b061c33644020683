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

std::vector<StringStates::Run> StringStates::plain_runs(const ByteDfa& dfa) {
  // Around the quote and the backslash; continuation bytes begin no character.
  constexpr Run kParts[] = {{0x20, '"' - 1, true},
                            {'"' + 1, '\\' - 1, true},
                            {'\\' + 1, kFirstContinuation - 1, true},
                            {kFirstContinuation, kLastContinuation, false},
                            {kLastContinuation + 1, 0xFF, true}};
  std::vector<Run> runs;
  for (const Run& part : kParts) {
    for (int first = part.first; first <= part.last;) {
      int last = first;
      while (last < part.last && dfa.class_of[static_cast<std::size_t>(last) + 1] ==
                                     dfa.class_of[static_cast<std::size_t>(first)]) {
        ++last;
      }
      runs.push_back({first, last, part.begins_character});
      first = last + 1;
    }
  }
  return runs;
}

// One byte of each class that holds bytes with escapes.
std::vector<std::uint8_t> StringStates::escaped_bytes(const ByteDfa& dfa) {
  std::vector<std::uint8_t> bytes;
  for (int byte = 0; byte < 256; ++byte) {
    if (!has_escape(static_cast<std::uint8_t>(byte))) continue;
    if (!bytes.empty() &&
        dfa.class_of[bytes.back()] == dfa.class_of[static_cast<std::size_t>(byte)])
      continue;
    bytes.push_back(static_cast<std::uint8_t>(byte));
  }
  return bytes;
}

// Bytes that stand for themselves. Neighbours that lead to the same state are one edge.
void StringStates::add_plain(int q) {
  for (std::size_t i = 0; i < runs_.size();) {
    const std::int32_t to = dfa_.step(q, static_cast<std::uint8_t>(runs_[i].first));
    const Run& run = runs_[i];
    int last = run.last;
    for (++i; i < runs_.size() && runs_[i].first == last + 1 &&
              runs_[i].begins_character == run.begins_character &&
              dfa_.step(q, static_cast<std::uint8_t>(runs_[i].first)) == to;
         ++i) {
      last = runs_[i].last;
    }
    if (to == ByteDfa::kDead) continue;
    builder_.add_edge(state(q), static_cast<std::uint8_t>(run.first),
                      static_cast<std::uint8_t>(last), state(to),
                      run.begins_character || guards_ != nullptr ? on_char(to) : GrammarAction());
  }
}

bool StringStates::has_escapes(int q) const {
  const auto leads_on = [&](std::uint8_t byte) { return dfa_.step(q, byte) != ByteDfa::kDead; };
  return std::any_of(std::begin(escaped_bytes_), std::end(escaped_bytes_), leads_on);
}

StringStates::EscapeTargets StringStates::escape_targets(int q) const {
  EscapeTargets targets;
  targets.reserve(std::size(kShortEscapes) + kNumControls + 1);
  for (const ShortEscape& escape : kShortEscapes) targets.push_back(dfa_.step(q, escape.byte));
  for (int byte = 0; byte < kNumControls; ++byte) {
    targets.push_back(dfa_.step(q, static_cast<std::uint8_t>(byte)));
  }
  return targets;
}

void StringStates::add_escapes(int q) {
  if (!has_escapes(q)) return;
  EscapeTargets targets = escape_targets(q);
  if (any_escape_) targets.push_back(q);  // any character comes back to q
  const auto [at, is_new] = escapes_.emplace(targets, 0);
  if (is_new) {
    const BuildState escape = at->second = builder_.add_state();
    for (std::size_t i = 0; i < std::size(kShortEscapes); ++i) {
      if (targets[i] == ByteDfa::kDead) continue;
      builder_.add_edge(escape, kShortEscapes[i].letter, state(targets[i]),
                        behind_escape(targets[i]));
    }
    if (any_escape_) {
      add_any_escape(q, escape);
    } else {
      add_control_escapes(targets, escape);
    }
  }
  builder_.add_edge(state(q), '\\', at->second, on_backslash(q));
}

// \u00XX of control characters that have no short escape.
void StringStates::add_control_escapes(const EscapeTargets& targets, BuildState escape) {
  BuildState halves[2];
  bool has_half[2] = {false, false};
  for (int byte = 0; byte < kNumControls; ++byte) {
    const std::int32_t to = targets[std::size(kShortEscapes) + static_cast<std::size_t>(byte)];
    if (to == ByteDfa::kDead || has_short_escape(static_cast<std::uint8_t>(byte))) continue;
    const int half = byte / 16;
    if (!has_half[half]) {
      halves[half] = builder_.add_state();
      has_half[half] = true;
    }
    add_hex(builder_, halves[half], byte % 16, byte % 16, state(to), behind_escape(to));
  }
  if (!has_half[0] && !has_half[1]) return;
  const BuildState u = builder_.add_state(), zero = builder_.add_state();
  const BuildState zeros = builder_.add_state();
  builder_.add_edge(escape, 'u', u, guards_ == nullptr ? GrammarAction() : guards_->control);
  builder_.add_edge(u, '0', zero);
  builder_.add_edge(zero, '0', zeros);
  for (int half = 0; half < 2; ++half) {
    if (has_half[half]) add_hex(builder_, zeros, half, half, halves[half]);
  }
}

// Any \uXXXX, surrogates in pairs only. Digits of the first four: one, two, three.
void StringStates::add_any_escape(int q, BuildState escape) {
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
