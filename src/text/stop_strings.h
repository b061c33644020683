// Ends a text before the first stop string, while the text is still arriving.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gapless {

// One sequence's text; one thread at a time. The result does not depend on how the text is cut into
// pieces: the stop string that ends first wins, and of those that end at one place the longest.
class StopStrings {
 public:
  // The caller bounds them (kMaxStopStrings, kMaxStopStringBytes). Without any, or with only empty
  // ones, the text never stops.
  explicit StopStrings(std::vector<std::string> stop_strings);

  // The text that is now known not to belong to a stop string, and comes before the first one. Text
  // that may still become a stop string is held back. Empty once stopped().
  std::string push(std::string_view text);

  // At the end of the text: what was held back (nothing when stopped()).
  std::string flush();

  bool stopped() const { return stopped_; }

 private:
  // The state of one stop string's automaton (Knuth-Morris-Pratt).
  struct Pattern {
    std::string text;
    std::vector<std::size_t> failure;  // longest proper border of each prefix
    std::size_t matched = 0;           // bytes of `text` that end here

    void advance(char byte);
  };

  std::vector<Pattern> patterns_;
  std::string held_back_;
  bool stopped_ = false;
};

}  // namespace gapless
