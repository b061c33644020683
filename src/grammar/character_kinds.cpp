#include "grammar/character_kinds.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "grammar/grammar.h"
#include "grammar/state_loops.h"

namespace gapless {
namespace {

// Bytes that grammars seldom tell apart are of one kind: letters of hexadecimal digits, other letters, digits, control characters, and
// some signs that are seldom. Other bytes have a kind of their own.
constexpr std::array<std::uint8_t, 128> number_ascii() {
  struct Range {
    int kind, first, last;
  };
  constexpr Range kTogether[] = {{0, '0', '9'}, {1, 'a', 'f'}, {2, 'g', 'z'}, {3, 'A', 'F'},
                                 {4, 'G', 'Z'}, {5, 0, 8},     {5, 0xB, 0xC}, {5, 0xE, 0x1F},
                                 {6, '^', '^'}, {6, '`', '`'}, {6, '|', '|'}, {6, '~', 0x7F},
                                 {6, '$', '$'}};
  constexpr std::uint8_t kNone = 0xFF;
  std::array<std::uint8_t, 128> numbers{};
  for (std::uint8_t& number : numbers) number = kNone;
  for (const Range& range : kTogether) {
    for (int byte = range.first; byte <= range.last; ++byte) {
      numbers[static_cast<std::size_t>(byte)] = static_cast<std::uint8_t>(range.kind);
    }
  }
  std::uint8_t next = 7;
  for (std::uint8_t& number : numbers) {
    if (number == kNone) number = next++;
  }
  return numbers;
}

constexpr std::array<std::uint8_t, 128> kNumberOfAscii = number_ascii();
static_assert(*std::max_element(kNumberOfAscii.begin(), kNumberOfAscii.end()) + 1 ==
              kNumAsciiKinds);

struct ByteRange {
  std::uint8_t first, last;
};

constexpr ByteRange kContinuations = {0x80, 0xBF};

// Well-formed characters by their first byte: what the second may be. Those behind it are kContinuations.
struct LongForm {
  ByteRange leads, second;
  int num_bytes;
};
constexpr LongForm kLongForms[] = {
    {{0xC2, 0xDF}, {0x80, 0xBF}, 2}, {{0xE0, 0xE0}, {0xA0, 0xBF}, 3},
    {{0xE1, 0xEC}, {0x80, 0xBF}, 3}, {{0xED, 0xED}, {0x80, 0x9F}, 3},
    {{0xEE, 0xEF}, {0x80, 0xBF}, 3}, {{0xF0, 0xF0}, {0x90, 0xBF}, 4},
    {{0xF1, 0xF3}, {0x80, 0xBF}, 4}, {{0xF4, 0xF4}, {0x80, 0x8F}, 4}};

bool contains(const ByteRange& range, std::uint8_t byte) {
  return range.first <= byte && byte <= range.last;
}

// Bytes of the character that begins `text`, at least two; 0: there is no whole one.
int length_of_long(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  for (const LongForm& form : kLongForms) {
    if (!contains(form.leads, byte(0))) continue;
    const auto num_bytes = static_cast<std::size_t>(form.num_bytes);
    if (text.size() < num_bytes || !contains(form.second, byte(1))) return 0;
    for (std::size_t i = 2; i < num_bytes; ++i) {
      if (!contains(kContinuations, byte(i))) return 0;
    }
    return form.num_bytes;
  }
  return 0;
}

class LoopFinder {
 public:
  explicit LoopFinder(const Grammar& grammar) : grammar_(grammar), tables_(tables_of(grammar)) {
    kinds_of_class_.resize(static_cast<std::size_t>(grammar.num_classes));
    for (std::uint8_t byte = 0; byte < 128; ++byte) {
      kinds_of_class_[grammar.class_of[byte]] |= kind_of_ascii(byte);
    }
    for (const LongForm& form : kLongForms) {
      forms_.push_back({classes_in(form.leads), classes_in(form.second), form.num_bytes});
      for (const std::uint8_t lead : forms_.back().leads) kinds_of_class_[lead] |= kLongCharacter;
    }
    continuations_ = classes_in(kContinuations);
  }

  CharacterLoops of(std::uint16_t state) const {
    const GrammarEdge* const edges = row(state);
    CharacterLoops loops;
    if (!has_loop(edges, state)) return loops;  // most states
    std::int32_t counting = state_loops::kNoAction;
    for (int c = 0; c < grammar_.num_classes; ++c) {
      counting = std::min(counting, state_loops::counting_action(tables_, state, edges[c]));
    }
    loops.counts = counting == state_loops::kNoAction ? 0 : 1;
    if (loops.counts != 0) loops.most = grammar_.actions[static_cast<std::size_t>(counting)].max;
    const auto action = static_cast<std::uint16_t>(loops.counts != 0 ? counting : 0);
    CharacterKinds elsewhere = 0, legal = 0;
    for (std::size_t c = 0; c < kinds_of_class_.size(); ++c) {
      if (edges[c].state != state || edges[c].action != action) elsewhere |= kinds_of_class_[c];
      if (edges[c].state != kDeadGrammarState) legal |= kinds_of_class_[c];
    }
    const bool long_ones_lead_back =
        std::all_of(forms_.begin(), forms_.end(),
                    [&](const Form& form) { return leads_back(state, action, form); });
    loops.kinds = (kAsciiKinds & ~elsewhere) | (long_ones_lead_back ? kLongCharacter : 0);
    loops.illegal = (kAsciiKinds | kLongCharacter) & ~legal;
    return loops;
  }

 private:
  using Classes = std::vector<std::uint8_t>;
  struct Form {
    Classes leads, second;
    int num_bytes;
  };

  const GrammarEdge* row(std::uint16_t state) const {
    return grammar_.edges.data() +
           std::size_t{state} * static_cast<std::size_t>(grammar_.num_classes);
  }
  // Without branches or calls, so that a compiler looks at several edges at once.
  bool has_loop(const GrammarEdge* edges, std::uint16_t state) const {
    std::uint32_t num_loops = 0;
    const std::size_t num_classes = kinds_of_class_.size();
    for (std::size_t c = 0; c < num_classes; ++c) num_loops += edges[c].state == state ? 1u : 0u;
    return num_loops != 0;
  }
  Classes classes_in(const ByteRange& range) const {
    Classes classes;
    for (int byte = range.first; byte <= range.last; ++byte) {
      const std::uint8_t one = grammar_.class_of[static_cast<std::size_t>(byte)];
      if (classes.empty() || classes.back() != one) classes.push_back(one);
    }
    return classes;
  }
  // The state to which all of these bytes lead; kDeadGrammarState: not to one, or not without doing something.
  std::uint16_t behind(std::uint16_t state, const Classes& bytes) const {
    if (state == kDeadGrammarState) return state;
    const GrammarEdge* const edges = row(state);
    const std::uint16_t to = edges[bytes.front()].state;
    for (const std::uint8_t c : bytes) {
      if (edges[c].state != to || edges[c].action != 0) return kDeadGrammarState;
    }
    return to;
  }
  // The lead byte counts, as the grammar's compiler does it.
  bool leads_back(std::uint16_t state, std::uint16_t action, const Form& form) const {
    for (const std::uint8_t lead : form.leads) {
      const GrammarEdge edge = row(state)[lead];
      if (edge.action != action) return false;
      std::uint16_t at = behind(edge.state, form.second);
      for (int i = 2; i < form.num_bytes; ++i) at = behind(at, continuations_);
      if (at != state) return false;
    }
    return true;
  }

  const Grammar& grammar_;
  const GrammarTables tables_;
  std::vector<CharacterKinds> kinds_of_class_;  // that begin with a byte in it
  std::vector<Form> forms_;
  Classes continuations_;
};

}  // namespace

CharacterKinds kind_of_ascii(std::uint8_t byte) {
  return CharacterKinds{1} << kNumberOfAscii[byte];
}

TextSummary summary_of(std::string_view text) {
  if (text.empty()) return {};
  CharacterKinds kinds = 0;
  int num_characters = 0;
  for (std::size_t i = 0; i < text.size(); ++num_characters) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const int num_bytes = byte < 0x80 ? 1 : length_of_long(text.substr(i));
    if (num_bytes == 0 || num_characters == TextSummary::kMostCharacters) {
      kinds |= kBrokenText;
      break;
    }
    kinds |= num_bytes == 1 ? kind_of_ascii(byte) : kLongCharacter;
    i += static_cast<std::size_t>(num_bytes);
  }
  const std::uint64_t first = static_cast<std::uint8_t>(text[0]);
  const std::uint64_t second = text.size() > 1 ? static_cast<std::uint8_t>(text[1]) : first;
  return {kinds | first << TextSummary::kFirstBit | second << TextSummary::kSecondBit |
          static_cast<std::uint64_t>(num_characters) << TextSummary::kNumberBit};
}

std::vector<CharacterLoops> find_character_loops(const Grammar& grammar) {
  const LoopFinder finder(grammar);
  std::vector<CharacterLoops> loops;
  loops.reserve(static_cast<std::size_t>(grammar.num_states));
  for (int state = 0; state < grammar.num_states; ++state) {
    loops.push_back(finder.of(static_cast<std::uint16_t>(state)));
  }
  return loops;
}

}  // namespace gapless
