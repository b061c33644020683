#include "grammar/string_tree.h"

#include "grammar/grammar_limits.h"

namespace gapless {

bool StringTree::add(std::string_view string) {
  int at = 0;
  for (const char c : string) {
    const auto byte = static_cast<std::uint8_t>(c);
    // It goes on where the last one did, or nowhere yet.
    const int last = node(at).last_child;
    if (last >= 0 && node(last).byte == byte) {
      at = last;
      continue;
    }
    if (nodes_.size() >= kMaxGrammarStates) return false;
    const int child = size();
    nodes_.push_back({.parent = at, .byte = byte});
    Node& parent = nodes_[static_cast<std::size_t>(at)];
    (last < 0 ? parent.first_child : nodes_[static_cast<std::size_t>(last)].next_child) = child;
    parent.last_child = child;
    at = child;
  }
  nodes_[static_cast<std::size_t>(at)].string = num_strings_++;
  return true;
}

}  // namespace gapless
