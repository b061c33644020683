// Tokens that are matched in the text before anything else, such as "<|endoftext|>".
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "base/ids.h"

namespace gapless {

// A set of strings with their tokens. The match at the leftmost place wins, and there the longest.
class AddedTokenSet {
 public:
  void add(std::string_view content, TokenId token);
  bool empty() const { return nodes_.empty(); }

  // Cuts `text` into tokens and the text between them, in order; empty text is left out.
  void split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(TokenId)>& on_token) const;

 private:
  struct Match {
    std::size_t num_bytes = 0;  // 0: none
    TokenId token;
  };
  Match longest_match_at_start(std::string_view text) const;

  // A trie. Key: node, byte; node 0 is the root. A node that ends a string has its token.
  struct Node {
    std::uint32_t node;
    TokenId token;
  };
  std::unordered_map<std::uint64_t, Node> nodes_;
};

}  // namespace gapless
