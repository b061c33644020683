// The contract is GrammarMasksParams' comment in kernels.h; this is its most literal form: every token from a copy of the row.
#include <algorithm>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {
namespace {

bool take_token(const GrammarTables& grammar, const TokenTexts& texts, std::int32_t token,
                GrammarRow& row) {
  const std::int32_t begin = texts.first[token], end = texts.first[token + 1];
  for (std::int32_t i = begin; i < end; ++i) {
    if (!take_byte(grammar, row, texts.bytes[i])) return false;
  }
  return begin < end;
}

}  // namespace

void move_grammar_row(const GrammarMasksParams& params, std::int32_t row) {
  const RowState& state = params.row_states[row];
  const GrammarTables& grammar = params.grammars[state.grammar];
  GrammarRow& place = params.grammar_rows[row];
  const std::int32_t token = state.input.id;
  if (state.num_generated == 0) {
    begin_row(grammar, place);
  } else if (place.state == kDeadGrammarState || token < 0 || token >= params.texts.vocab ||
             !take_token(grammar, params.texts, token, place)) {
    place.state = kDeadGrammarState;
  }
}

void grammar_masks(const GrammarMasksParams& params) {
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    const std::int32_t row = params.rows[i];
    if (row < 0) continue;
    const RowState& state = params.row_states[row];
    if (state.done != 0 || state.grammar == kNoGrammar) continue;
    move_grammar_row(params, row);
    const GrammarTables& grammar = params.grammars[state.grammar];
    const GrammarRow& place = params.grammar_rows[row];
    std::uint32_t* const mask = params.masks + i * params.mask_stride;
    std::fill_n(mask, params.mask_stride, 0u);
    if (place.state == kDeadGrammarState) continue;
    for (std::int32_t token = 0; token < params.texts.vocab; ++token) {
      GrammarRow copy = place;
      const bool legal = token == params.texts.eos_id
                             ? may_end(grammar, place)
                             : take_token(grammar, params.texts, token, copy);
      if (legal) mask[token / 32] |= 1u << (token % 32);
    }
  }
}

}  // namespace gapless::reference
