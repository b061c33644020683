#include "skill/token_logprob.h"

#include "text/utf8.h"

namespace gapless {

ScoredToken score_token(const Tokenizer& tokenizer, TokenId id, float logprob) {
  std::string bytes = tokenizer.token_bytes(id);
  ScoredToken scored{.text = escape_invalid_utf8(bytes), .bytes = {}, .logprob = logprob};
  if (!tokenizer.is_special(id)) scored.bytes = std::move(bytes);
  return scored;
}

}  // namespace gapless
