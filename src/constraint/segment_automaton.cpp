#include "constraint/segment_automaton.h"

#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "step/automaton_walk.h"

namespace gapless {
namespace {

static_assert(static_cast<int>(PathToken::kNumber) < kNumTokenClasses);

// Relative to the first one. Behind them lie those of each number of numbers (NumberStates).
enum SegmentState : std::int32_t { kBoxX, kBoxY, kBoxSize, kBeforePath, kBehindClose, kNumFixed };

// The states of commands that take `num` numbers at a time:
//   before(0)       a number has to come; before(i): the i-th one
//   whole()         all are there: another set of them, a command or the end may come
//   behind_sign(i)  the i-th number has its sign
struct NumberStates {
  char command;  // one of them
  int num;
  std::int32_t begin;

  std::int32_t before(int i) const { return begin + i; }
  std::int32_t whole() const { return begin + num; }
  std::int32_t behind_sign(int i) const { return begin + num + 1 + i; }
  std::int32_t end() const { return begin + 2 * num + 1; }
  std::int32_t behind(int i) const { return i + 1 == num ? whole() : before(i + 1); }
};

class SegmentAutomaton {
 public:
  SegmentAutomaton(const SpatialTokens& tokens, std::int32_t first)
      : tokens_(tokens), first_(first) {
    std::int32_t begin = kNumFixed;
    for (const auto& [token, command] : kKinds) {
      numbers_.push_back({command, *num_path_numbers(command), begin});
      begin = numbers_.back().end();
    }
    states_.resize(static_cast<std::size_t>(begin));
    GAPLESS_CHECK(begin == kNumSegmentStates);
  }

  std::vector<AutomatonState> build() {
    add_edge(kBoxX, tokens_.coord_id, kBoxY);
    add_edge(kBoxY, tokens_.coord_id, kBoxSize);
    add_edge(kBoxSize, tokens_.size_id, kBeforePath);
    add_class(kBeforePath, PathToken::kMove, states_of('M').before(0));
    add_what_follows_a_command(kBehindClose);
    for (const NumberStates& set : numbers_) {
      for (int i = 0; i < set.num; ++i) {
        add_number(set.before(i), set, i);
        add_unsigned(set.behind_sign(i), set, i);
      }
      add_number(set.whole(), set, 0);
      add_what_follows_a_command(set.whole());
    }
    return std::move(states_);
  }

 private:
  // Commands that take different numbers of numbers, each with one of its letters.
  static constexpr std::pair<PathToken, char> kKinds[] = {{PathToken::kOne, 'H'},
                                                          {PathToken::kTwo, 'L'},
                                                          {PathToken::kFour, 'Q'},
                                                          {PathToken::kSix, 'C'},
                                                          {PathToken::kArc, 'A'}};

  AutomatonState& at(std::int32_t state) { return states_[static_cast<std::size_t>(state)]; }

  const NumberStates& states_of(char command) const {
    std::size_t i = 0;
    while (numbers_[i].num != *num_path_numbers(command)) ++i;
    return numbers_[i];
  }

  void add_edge(std::int32_t state, std::int32_t token, std::int32_t next) {
    AutomatonState& from = at(state);
    from.tokens[from.num_edges] = token;
    from.next[from.num_edges++] = first_ + next;
  }

  void add_class(std::int32_t state, PathToken token, std::int32_t next) {
    const auto token_class = static_cast<unsigned>(token);
    at(state).classes |= 1u << token_class;
    at(state).class_next[token_class] = first_ + next;
  }

  void add_unsigned(std::int32_t state, const NumberStates& set, int i) {
    add_class(state, PathToken::kBit, set.behind(i));
    if (path_number(set.command, i) == PathNumber::kFlag) return;
    add_class(state, PathToken::kNumber, set.behind(i));
  }

  void add_number(std::int32_t state, const NumberStates& set, int i) {
    add_unsigned(state, set, i);
    const PathNumber kind = path_number(set.command, i);
    if (kind == PathNumber::kFlag || kind == PathNumber::kRadius) return;
    add_class(state, PathToken::kMinus, set.behind_sign(i));
  }

  // After a sampled eos the row is done, so where its edge leads is never used.
  void add_what_follows_a_command(std::int32_t state) {
    add_edge(state, tokens_.eos_id, state);
    add_class(state, PathToken::kMove, states_of('M').before(0));
    for (const auto& [token, command] : kKinds)
      add_class(state, token, states_of(command).before(0));
    add_class(state, PathToken::kClose, kBehindClose);
  }

  const SpatialTokens tokens_;
  const std::int32_t first_;
  std::vector<NumberStates> numbers_;
  std::vector<AutomatonState> states_;
};

}  // namespace

std::vector<AutomatonState> build_segment_automaton(const SpatialTokens& tokens,
                                                    std::int32_t first) {
  return SegmentAutomaton(tokens, first).build();
}

SegmentConstraint::SegmentConstraint(const SpatialTokens& tokens,
                                     std::vector<std::uint8_t> token_classes)
    : token_classes_(std::move(token_classes)), states_(build_segment_automaton(tokens, 0)) {
  GAPLESS_CHECK(!tokens.any_token_is_coord);
  row_.automaton = 0;
}

void SegmentConstraint::allowed(std::span<std::uint32_t> mask) const {
  const ListedTokens listed =
      listed_tokens(states_[static_cast<std::size_t>(row_.automaton)], row_, token_classes_.data());
  for (std::size_t token = 0; token < token_classes_.size(); ++token) {
    if (listed.allows(static_cast<std::int32_t>(token))) mask[token / 32] |= 1u << (token % 32);
  }
}

void SegmentConstraint::advance(TokenId token) {
  walk_automaton(states_.data(), token_classes_.data(), token.value, row_);
}

}  // namespace gapless
