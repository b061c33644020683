// States that have a number when they are first mentioned and edges later: one for each key.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/grammar_builder.h"

namespace gapless {

template <typename Key>
class StatesToFill {
 public:
  BuildState state(GrammarBuilder& builder, const Key& key) {
    const auto [at, is_new] = states_.emplace(key, 0);
    if (is_new) {
      at->second = builder.add_state();
      unfilled_.emplace_back(at->second, key);
    }
    return at->second;
  }

  // One that has no edges yet, the newest first; nothing when all have theirs.
  std::optional<std::pair<BuildState, Key>> next() {
    if (unfilled_.empty()) return std::nullopt;
    const auto last = unfilled_.back();
    unfilled_.pop_back();
    return last;
  }

 private:
  std::map<Key, BuildState> states_;
  std::vector<std::pair<BuildState, Key>> unfilled_;
};

}  // namespace gapless
