#include "grammar/grammar.h"

#include <algorithm>

namespace gapless {

int Grammar::largest_count() const {
  int largest = 0;
  for (const GrammarCondition& condition : conditions) {
    largest = std::max({largest, condition.min, condition.max});
  }
  return largest;
}

std::size_t Grammar::bytes() const {
  return edges.size() * sizeof(GrammarEdge) + may_end.size() +
         actions.size() * sizeof(GrammarAction) + conditions.size() * sizeof(GrammarCondition) +
         name_sets.size() * sizeof(NameSet) + next_states.size() * sizeof(std::uint16_t) +
         character_loops.size() * sizeof(CharacterLoops);
}

GrammarTables tables_of(const Grammar& grammar) {
  return {.class_of = grammar.class_of.data(),
          .edges = grammar.edges.data(),
          .may_end = grammar.may_end.data(),
          .actions = grammar.actions.data(),
          .conditions = grammar.conditions.data(),
          .name_sets = grammar.name_sets.data(),
          .next_states = grammar.next_states.data(),
          .character_loops = grammar.character_loops.data(),
          .num_classes = grammar.num_classes,
          .start = grammar.start,
          .root_table = grammar.root_table};
}

GrammarTables tables_of(const Grammar& grammar, std::int32_t id) {
  GrammarTables tables = tables_of(grammar);
  tables.id = id;
  return tables;
}

GrammarRow begin_row(const Grammar& grammar) {
  GrammarRow row;
  row.state = grammar.start;
  row.frames[0].next = grammar.root_table;
  return row;
}

bool advance(const Grammar& grammar, GrammarRow& row, std::uint8_t byte) {
  return take_byte(tables_of(grammar), row, byte);
}

bool may_end(const Grammar& grammar, const GrammarRow& row) {
  return row.depth == 0 && grammar.may_end[row.state] != 0;
}

bool accepts(const Grammar& grammar, std::string_view text) {
  GrammarRow row = begin_row(grammar);
  for (const char byte : text) {
    if (!advance(grammar, row, static_cast<std::uint8_t>(byte))) return false;
  }
  return may_end(grammar, row);
}

}  // namespace gapless
