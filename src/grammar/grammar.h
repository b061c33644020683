// A compiled grammar: a pushdown automaton over bytes with counters, as flat tables that the host and the
// device read alike.
//
//        "     [ key bytes ]     "          :         [ value of the key ]     ,
//   ( ) ---> ( ) - - - - - -> ( ) --> (colon) --> (value's start) - - - > (after) ---> ...
//                              key: its bit        call: frame.next = after
//
// A row's state is (state, length, frames). Every open object or array has a frame; the answer itself
// has the first one. A value does not know where it stands: whoever begins one notes in the top frame
// where to go on (kCall), and the value's end goes there (kReturn). So a schema's states exist once,
// however often it is referred to, itself included.
//
// What an operation other than kSpace, kChar and kStringBegin does sets `length` to 0: it ends a string or a run of
// whitespace.
//
// A value may satisfy several alternatives of a schema at once (anyOf): it returns a result, a number
// that says which; frame.next names a list of states, one for each result.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
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

// One alternative of an object or array at its end.
struct GrammarCondition {
  std::array<std::uint32_t, kNameWords> required{};  // name bits
  std::int32_t min = 0, max = 0;                     // members or items; max < 0: unlimited
  std::uint32_t role = 0;                            // bit of the result

  friend auto operator<=>(const GrammarCondition&, const GrammarCondition&) = default;
};

using NameSet = std::array<std::uint32_t, kNameWords>;  // name bits

struct GrammarEdge {
  std::uint16_t state = kDeadGrammarState;
  std::uint16_t action = 0;  // 0: none
};

struct Grammar {
  std::array<std::uint8_t, 256> class_of{};
  int num_classes = 0;
  int num_states = 0;
  std::uint16_t start = 0;
  std::uint16_t root_table = 0;        // the first frame's next
  std::vector<GrammarEdge> edges;      // [num_states, num_classes]
  std::vector<std::uint8_t> may_end;   // [num_states]: the answer may stop here, in the first frame
  std::vector<GrammarAction> actions;  // [0] is none
  std::vector<GrammarCondition> conditions;
  std::vector<NameSet> name_sets;
  std::vector<std::uint16_t> next_states;  // lists of states, one entry for each result

  std::size_t bytes() const;
  // No condition tells larger counts of members or items apart.
  int largest_count() const;

  GrammarEdge edge(std::uint16_t state, std::uint8_t byte) const {
    return edges[std::size_t{state} * static_cast<std::size_t>(num_classes) + class_of[byte]];
  }
};

struct GrammarFrame {
  std::uint16_t next = 0;
  std::int32_t count = 0;  // members, or items but the last
  std::array<std::uint32_t, kNameWords> seen{};
};

// Where an answer stands.
struct GrammarRow {
  std::uint16_t state = 0;
  std::uint16_t depth = 0;  // frames in use, less one
  std::int32_t length = 0;  // code points of the string that goes on, or bytes of whitespace
  std::array<GrammarFrame, kMaxGrammarDepth + 1> frames{};
};

// Of the names that a condition requires, how many an object has not.
int num_missing(const GrammarCondition& condition, const GrammarFrame& frame);

GrammarRow begin_row(const Grammar& grammar);
// False: the byte is illegal here, and the row is undefined.
bool advance(const Grammar& grammar, GrammarRow& row, std::uint8_t byte);
bool may_end(const Grammar& grammar, const GrammarRow& row);

// Whether the whole text is an answer of the grammar.
bool accepts(const Grammar& grammar, std::string_view text);

}  // namespace gapless
