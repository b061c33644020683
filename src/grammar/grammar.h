// A compiled grammar: a pushdown automaton over bytes with counters, as flat tables that the host and the
// device read alike (grammar_tables.h) and walk alike (grammar_walk.h).
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
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar_limits.h"
#include "grammar/grammar_tables.h"
#include "grammar/grammar_walk.h"

namespace gapless {

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
  std::vector<std::uint16_t> next_states;       // lists of states, one entry for each result
  std::vector<CharacterLoops> character_loops;  // [num_states], find_character_loops()

  std::size_t bytes() const;
  // No condition tells larger counts of members or items apart.
  int largest_count() const;

  GrammarEdge edge(std::uint16_t state, std::uint8_t byte) const {
    return edges[std::size_t{state} * static_cast<std::size_t>(num_classes) + class_of[byte]];
  }
};

// Where they lie: all that a walk reads.
GrammarTables tables_of(const Grammar& grammar);
// And what a cache of masks needs besides; looks at every condition. `id`: GrammarTables::id.
GrammarTables tables_of(const Grammar& grammar, std::int32_t id);

// Whether an answer may get to where it can go on only by opening one more object or list than kMaxGrammarDepth. False: where
// the last frame is in use every value can end without another one, or nothing ever uses the last frame.
bool may_run_out_of_frames(const Grammar& grammar);

GrammarRow begin_row(const Grammar& grammar);
// False: the byte is illegal here, and the row is undefined.
bool advance(const Grammar& grammar, GrammarRow& row, std::uint8_t byte);
bool may_end(const Grammar& grammar, const GrammarRow& row);

// Whether the whole text is an answer of the grammar.
bool accepts(const Grammar& grammar, std::string_view text);

}  // namespace gapless
