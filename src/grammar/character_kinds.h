// Kinds of characters. Where each kind that a text has leads back to a state of a grammar, so does the whole text: one look at a set
// in place of one for each byte. With Qwen's vocabulary that is so for 145,451 of 151,643 tokens at a place in a JSON string.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/host_device.h"

namespace gapless {

struct Grammar;

// A set of kinds, a bit for each: ASCII's (character_kinds.cpp lists them), then characters of two, three and four bytes, then what
// is no whole character of UTF-8.
using CharacterKinds = std::uint64_t;

inline constexpr int kNumAsciiKinds = 43;
inline constexpr int kNumCharacterKinds = kNumAsciiKinds + 4;
inline constexpr CharacterKinds kAsciiKinds = (CharacterKinds{1} << kNumAsciiKinds) - 1;
// num_bytes: 2 to 4.
constexpr CharacterKinds long_character(int num_bytes) {
  return CharacterKinds{1} << (kNumAsciiKinds + num_bytes - 2);
}
inline constexpr CharacterKinds kBrokenText = CharacterKinds{1} << (kNumCharacterKinds - 1);

CharacterKinds kind_of_ascii(std::uint8_t byte);

// In one word what is asked of a text first.
struct TextSummary {
  std::uint64_t word = 0;

  // None: the text is empty.
  GAPLESS_HOST_DEVICE CharacterKinds kinds() const { return word & ((1ull << 48) - 1); }
  GAPLESS_HOST_DEVICE std::uint8_t first_byte() const {
    return static_cast<std::uint8_t>(word >> 48);
  }
  // Unless it is broken.
  GAPLESS_HOST_DEVICE int num_characters() const { return static_cast<int>(word >> 56); }
};
static_assert(kNumCharacterKinds <= 48);

// A text of more characters than a summary can say is broken to it.
TextSummary summary_of(std::string_view text);

// The characters that lead back to a state, whole ones, and do nothing else or only count.
struct CharacterLoops {
  CharacterKinds kinds = 0;  // all characters of each
  std::int32_t most = -1;    // GrammarAction::max of what counts them; < 0: any number
  std::int32_t counts = 0;   // 1: each adds one to the length

  GAPLESS_HOST_DEVICE bool hold(TextSummary text) const { return (text.kinds() & ~kinds) == 0; }
};

// By state. May leave out kinds that lead back as well.
std::vector<CharacterLoops> find_character_loops(const Grammar& grammar);

}  // namespace gapless
