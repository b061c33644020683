// The log probabilities of an answer's tokens, in words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer.h"

namespace gapless {

// A token and how likely it was at its place, before masks, temperature and filters.
struct ScoredToken {
  std::string text;  // valid UTF-8; bytes that make no character on their own are spelled \xhh
  std::optional<std::string> bytes;  // what it adds to a text; nothing for special tokens
  float logprob = 0;                 // natural
};

// One token of an answer and the most likely ones at its place (it need not be among them).
struct TokenLogprob {
  ScoredToken token;
  std::vector<ScoredToken> top;
};

ScoredToken score_token(const Tokenizer& tokenizer, TokenId id, float logprob);

}  // namespace gapless
