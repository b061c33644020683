// Byte-pair merging of one word (one piece of pre-tokenized text).
//
// Merges are applied in the order of their rank, the leftmost first among equals, as Hugging Face's
// tokenizers do. A heap over a linked list of symbols makes a word of n bytes cost O(n log n), so
// one word of a megabyte is no different from a megabyte of words. Immutable after building, but
// for an internally locked cache of short words: any thread may call it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace gapless {

class WordCache;

class Bpe {
 public:
  struct Merge {
    TokenId left, right, merged;
  };

  // byte_tokens[b]: the token of the single byte b; an invalid id where the vocabulary has none
  // (only bytes that never occur in UTF-8 may lack one). `merges` in rank order; when a pair occurs
  // twice, the later one counts.
  Bpe(const std::array<TokenId, 256>& byte_tokens, std::span<const Merge> merges);
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;
  ~Bpe();

  // Appends the tokens of `word` to `tokens`. Every byte of the word must have a token.
  void encode(std::string_view word, std::vector<TokenId>& tokens) const;

  // From now on no merge makes one of `tokens`. Not while other threads encode.
  void forbid(std::span<const TokenId> tokens);

 private:
  struct Rule {
    std::uint32_t rank;
    TokenId merged;
  };
  struct Symbol {
    TokenId token;
    std::int32_t previous, next;  // positions in the word; -1 at its ends
  };
  struct Candidate;

  const Rule* find_rule(TokenId left, TokenId right) const;
  void merge_word(std::string_view word, std::vector<TokenId>& tokens) const;

  std::array<TokenId, 256> byte_tokens_;
  std::unordered_map<std::uint64_t, Rule> rules_;  // key: left id, right id
  std::unique_ptr<WordCache> cache_;
};

}  // namespace gapless
