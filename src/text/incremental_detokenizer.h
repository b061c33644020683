// Turns a growing list of tokens into text, piece by piece, never splitting a character.
#pragma once

#include <string>

#include "base/ids.h"
#include "text/tokenizer.h"

namespace gapless {

// One sequence's text; one thread at a time. The tokenizer must outlive it.
//
// All that push() and flush() return, joined, is repair_utf8(tokenizer.decode(all the tokens)): the
// same text for every way of arriving.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer,
                                  SpecialTokens special = SpecialTokens::kSkip)
      : tokenizer_(&tokenizer), special_(special) {}

  // The text that `id` completes: valid UTF-8, possibly empty. At most the last three bytes are
  // held back, as long as they may still become a character.
  std::string push(TokenId id);

  // At the end: U+FFFD when an unfinished character was held back. Then it can begin anew.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  std::string held_back_;
};

}  // namespace gapless
