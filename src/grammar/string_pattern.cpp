#include "grammar/string_pattern.h"

#include <span>

namespace gapless {

StatusOr<const ByteDfa*> StringPattern::dfa() const {
  if (!dfa_) dfa_.emplace(make_dfa(std::span(&regex_, 1)));
  if (!dfa_->ok()) return dfa_->status();
  return &**dfa_;
}

}  // namespace gapless
