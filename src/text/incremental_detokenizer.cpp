#include "text/incremental_detokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace gapless {

std::string IncrementalDetokenizer::push(TokenId id) {
  if (special_ == SpecialTokens::kSkip && tokenizer_->is_special(id)) return {};
  held_back_ += tokenizer_->token_bytes(id);

  std::size_t done = 0;
  while (done < held_back_.size()) {
    const Utf8Step step = utf8_step(std::string_view(held_back_).substr(done));
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    done += step.num_bytes;
  }
  std::string text = repair_utf8(std::string_view(held_back_).substr(0, done));
  held_back_.erase(0, done);
  return text;
}

std::string IncrementalDetokenizer::flush() {
  return repair_utf8(std::exchange(held_back_, {}));
}

}  // namespace gapless
