// Which tokens a grammar allows next: the walk of a vocabulary through a grammar's tables.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "constraint/vocabulary_trie.h"
#include "grammar/grammar.h"

namespace gapless {

// The rows at which the same tokens are legal, all else being equal.
struct WalkExtent {
  WalkInterval lengths;
  std::vector<WalkInterval> counts;  // of the open frames, by depth

  bool contains(const GrammarRow& row) const;
};

// Sets the bits of the tokens all of whose bytes are legal at `row`; `mask` comes in as zeros, bit t of word t/32.
// One pass over the vocabulary, which leaves out what begins illegally.
WalkExtent find_legal_tokens(const Grammar& grammar, const GrammarRow& row,
                             const VocabularyTrie& vocabulary, std::span<std::uint32_t> mask);

// Calls `visit` with all legal tokens, those of the same bytes together, and where the row stands behind them.
void visit_legal_tokens(
    const Grammar& grammar, const GrammarRow& row, const VocabularyTrie& vocabulary,
    const std::function<void(const GrammarRow&, std::span<const std::int32_t>)>& visit);

}  // namespace gapless
