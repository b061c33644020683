// Answers that are whole within a number of tokens ("complete": true).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "constraint/vocabulary_trie.h"
#include "grammar/closing_text.h"
#include "grammar/grammar.h"

namespace gapless {

// How many tokens an answer takes at most to its end, from wherever it stands: those of a text that ends it
// (closing_text.h), its pieces in the longest tokens that fit. The end token is not among them. An upper bound: a shorter text
// may be there, and other tokens may spell it shorter. Thread-safe; grammar and vocabulary outlive it.
class ClosingTokens {
 public:
  ClosingTokens(const Grammar& grammar, const VocabularyTrie& vocabulary)
      : grammar_(grammar), vocabulary_(vocabulary), text_(grammar) {}

  // Tokens that end the answer. Nothing: none were found.
  std::optional<std::vector<std::int32_t>> find(const GrammarRow& row) const;

  // Takes out of `mask`, which holds the legal tokens at `row`, those behind which the answer is not known to end within `num_left`
  // more tokens. `key`: of the row but for its length (TokenGrammar).
  void keep_closable(const GrammarRow& row, const std::string& key, int num_left,
                     std::span<std::uint32_t> mask) const;

 private:
  // What is known of all tokens that are legal at a row.
  struct Worst {
    std::int32_t length = 0;  // of the row; greater lengths need no more
    int num_tokens = 0;
  };

  std::vector<std::int32_t> tokens_of(const std::string& piece) const;
  std::optional<std::vector<std::int32_t>> find(const GrammarRow& row, long& work) const;

  const Grammar& grammar_;
  const VocabularyTrie& vocabulary_;
  const ClosingText text_;
  mutable Mutex mutex_;
  mutable std::unordered_map<std::string, std::vector<std::int32_t>> pieces_
      GAPLESS_GUARDED_BY(mutex_);
  mutable std::unordered_map<std::string, Worst> worst_ GAPLESS_GUARDED_BY(mutex_);
};

// A row's place as bytes: the same for rows at the same place. Counts beyond `largest_count` are alike.
std::string key_of_row(const GrammarRow& row, std::int32_t largest_count);

}  // namespace gapless
