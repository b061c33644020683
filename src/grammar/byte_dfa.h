// Deterministic automata over bytes, made from regular expressions: sets of strings in UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/regex_ast.h"

namespace gapless {

// Which of up to 64 languages a string belongs to.
using LabelSet = std::uint64_t;
inline constexpr int kMaxLabels = 64;

// State 0 is the start. Every state can still reach one with labels; an automaton without any such
// path has no states. Complete only where a byte leads somewhere.
struct ByteDfa {
  static constexpr std::int32_t kDead = -1;

  std::array<std::uint8_t, 256> class_of{};  // bytes that no state tells apart
  int num_classes = 1;
  std::vector<std::int32_t> next;  // [num_states, num_classes]
  std::vector<LabelSet> labels;    // [num_states]: what the string so far belongs to

  int num_states() const { return static_cast<int>(labels.size()); }
  bool empty() const { return labels.empty(); }
  std::int32_t step(std::int32_t state, std::uint8_t byte) const {
    return state == kDead
               ? kDead
               : next[static_cast<std::size_t>(state) * static_cast<std::size_t>(num_classes) +
                      class_of[byte]];
  }
  // Of the whole string; 0: none.
  LabelSet match(std::string_view bytes) const;
};

// Strings of regexes[i] carry label bit i. ResourceExhausted past kMaxStringStates.
StatusOr<ByteDfa> make_dfa(std::span<const RegexPtr> regexes);
// Of an expression that every grammar may need: the grammar that is compiled first does not pay for the work.
ByteDfa shared_dfa(const RegexPtr& regex);

StatusOr<ByteDfa> intersection(const ByteDfa& a, const ByteDfa& b);  // labels of a
StatusOr<ByteDfa> difference(const ByteDfa& a, const ByteDfa& b);    // labels of a
// Strings of parts[i] carry label bit i; labels of the parts themselves are forgotten.
StatusOr<ByteDfa> labelled_union(std::vector<ByteDfa> parts);

// Sets the classes of bytes: a new one begins wherever starts_class says.
void number_classes(const std::array<bool, 257>& starts_class, ByteDfa& dfa);
std::vector<std::uint8_t> byte_of_each_class(const ByteDfa& dfa);

// Whether a label can be reached, by state.
std::vector<char> living_states(const ByteDfa& dfa);
// Without the states from which no label can be reached; the start stays state 0, or all go.
ByteDfa trimmed(ByteDfa dfa);

// These strings, label 1. ResourceExhausted past kMaxGrammarStates.
StatusOr<ByteDfa> dfa_of_strings(const std::set<std::string>& strings);
// Every string of UTF-8, label 1.
const ByteDfa& dfa_of_all_strings();

// Whether some string has labels in both.
bool intersects(const ByteDfa& a, const ByteDfa& b);

}  // namespace gapless
