// A compiled grammar as flat tables, and the state of a row that walks them: plain structs, shared byte for byte by the
// host, the CPU kernels and the CUDA kernels. What they mean: grammar.h; how they are walked: grammar_walk.h.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "grammar/character_kinds.h"
#include "grammar/grammar_limits.h"

namespace gapless {

inline constexpr std::uint16_t kDeadGrammarState = 0xFFFF;

enum class GrammarOp : std::uint16_t {
  kNone,
  kSpace,        // length + 1, at most `max`: whitespace between tokens is a run of bounded length
  kCall,         // frame.next = table
  kPush,         // a new frame with next = table
  kReturn,       // state = next of the frame, for `result`
  kRedo,         // the same without taking the byte: what ends a number belongs to what follows
  kStringBegin,  // length = 0
  kChar,         // length + 1, at most `max`
  kStringEnd,    // length at least `min`: kReturn
  kName,  // some name of name_sets[result] that is not there yet may come, or (table = 1) another one
  kKey,       // name `bit` was not there yet: now it is; one more member, if `conditions` allow
  kOtherKey,  // one more member, if `conditions` allow
  kComma,     // one more item, if `conditions` allow: kCall
  kClose,     // drops the frame and returns what `conditions` say; without any of them: illegal
};

// What to do on an edge besides going to its state.
struct GrammarAction {
  GrammarOp op = GrammarOp::kNone;
  std::uint16_t table = 0;   // first entry in Grammar::next_states
  std::uint16_t result = 0;  // or name bit; kClose: items beyond the counted ones
  std::uint16_t first_condition = 0, num_conditions = 0;
  std::int32_t min = 0, max = 0;

  friend bool operator==(const GrammarAction&, const GrammarAction&) = default;
};

inline constexpr int kNameWords = kMaxObjectNames / 32;

// Name bits. (The functions of std::array are not the device's.)
struct NameSet {
  std::uint32_t words[kNameWords] = {};

  GAPLESS_HOST_DEVICE std::uint32_t& operator[](std::size_t i) { return words[i]; }
  GAPLESS_HOST_DEVICE std::uint32_t operator[](std::size_t i) const { return words[i]; }
  static constexpr std::size_t size() { return kNameWords; }
  const std::uint32_t* begin() const { return words; }
  const std::uint32_t* end() const { return words + kNameWords; }

  friend auto operator<=>(const NameSet&, const NameSet&) = default;
};

// One alternative of an object or array at its end.
struct GrammarCondition {
  NameSet required;
  std::int32_t min = 0, max = 0;  // members or items; max < 0: unlimited
  std::uint32_t role = 0;         // bit of the result

  friend auto operator<=>(const GrammarCondition&, const GrammarCondition&) = default;
};

struct GrammarEdge {
  std::uint16_t state = kDeadGrammarState;
  std::uint16_t action = 0;  // 0: none
};

// Where a grammar's tables lie. Sizes: grammar.h.
struct GrammarTables {
  const std::uint8_t* class_of = nullptr;
  const GrammarEdge* edges = nullptr;
  const std::uint8_t* may_end = nullptr;
  const GrammarAction* actions = nullptr;
  const GrammarCondition* conditions = nullptr;
  const NameSet* name_sets = nullptr;
  const std::uint16_t* next_states = nullptr;
  const CharacterLoops* character_loops = nullptr;
  std::int32_t num_classes = 0;
  std::uint16_t start = 0;
  std::uint16_t root_table = 0;
  std::int32_t id = 0;  // not 0: of no two grammars of a device the same, ever
};

struct GrammarFrame {
  std::uint16_t next = 0;
  std::int32_t count = 0;  // members, or items but the last
  NameSet seen;
};

// Where an answer stands.
struct GrammarRow {
  std::uint16_t state = 0;
  std::uint16_t depth = 0;  // frames in use, less one
  std::int32_t length = 0;  // code points of the string that goes on, or bytes of whitespace
  GrammarFrame frames[kMaxGrammarDepth + 1] = {};

  // What grammar_walk.h asks of a row.
  GAPLESS_HOST_DEVICE bool reach(int) { return true; }
  GAPLESS_HOST_DEVICE GrammarFrame& frame(int at) { return frames[at]; }
  GAPLESS_HOST_DEVICE bool open_frame(int at, std::uint16_t next) {
    frames[at] = GrammarFrame{.next = next};
    return true;
  }
  GAPLESS_HOST_DEVICE bool length_at_most(std::int32_t limit) { return length <= limit; }
  GAPLESS_HOST_DEVICE bool length_at_least(std::int32_t limit) { return length >= limit; }
  GAPLESS_HOST_DEVICE bool count_at_most(int, std::int32_t count, std::int32_t limit) {
    return count <= limit;
  }
  GAPLESS_HOST_DEVICE void begin_length() { length = 0; }
};

}  // namespace gapless
