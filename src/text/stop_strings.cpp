#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace gapless {

StopStrings::StopStrings(std::vector<std::string> stop_strings) {
  for (std::string& text : stop_strings) {
    if (text.empty()) continue;
    Pattern pattern{std::move(text), {0}};
    for (std::size_t i = 1; i < pattern.text.size(); ++i) {
      std::size_t border = pattern.failure[i - 1];
      while (border > 0 && pattern.text[border] != pattern.text[i]) {
        border = pattern.failure[border - 1];
      }
      pattern.failure.push_back(pattern.text[border] == pattern.text[i] ? border + 1 : 0);
    }
    patterns_.push_back(std::move(pattern));
  }
}

void StopStrings::Pattern::advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = failure[matched - 1];
  if (text[matched] == byte) ++matched;
}

std::string StopStrings::push(std::string_view text) {
  if (stopped_) return {};
  for (const char byte : text) {
    held_back_ += byte;
    std::size_t longest_match = 0;
    for (Pattern& pattern : patterns_) {
      pattern.advance(byte);
      if (pattern.matched == pattern.text.size()) {
        longest_match = std::max(longest_match, pattern.matched);
      }
    }
    if (longest_match > 0) {
      stopped_ = true;
      held_back_.resize(held_back_.size() - longest_match);
      return std::exchange(held_back_, {});
    }
  }
  std::size_t longest_start = 0;
  for (const Pattern& pattern : patterns_) longest_start = std::max(longest_start, pattern.matched);
  std::string safe = held_back_.substr(0, held_back_.size() - longest_start);
  held_back_.erase(0, safe.size());
  return safe;
}

std::string StopStrings::flush() {
  return std::exchange(held_back_, {});
}

}  // namespace gapless
