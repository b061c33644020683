// The bytes of a vocabulary as a tree, laid out so that one pass over an array walks all tokens, each beginning of a
// token once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gapless {

class VocabularyTrie {
 public:
  // Preorder: a node's subtree follows it up to `end`.
  struct Node {
    std::uint8_t byte = 0;
    std::uint16_t depth = 0;  // bytes of the token so far, this one included: at least 1
    std::int32_t end = 0;     // the first node behind the subtree
    std::int32_t first_token = 0, num_tokens = 0;  // of tokens(): those that end here
  };

  // bytes[i] are those of token i; empty: it is no text and never legal under a grammar.
  explicit VocabularyTrie(std::vector<std::string> bytes);

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const std::int32_t> tokens_of(const Node& node) const {
    return std::span(tokens_).subspan(static_cast<std::size_t>(node.first_token),
                                      static_cast<std::size_t>(node.num_tokens));
  }
  const std::string& bytes_of(std::int32_t token) const {
    return bytes_[static_cast<std::size_t>(token)];
  }
  // The token that takes most of the text's beginning; -1: there is none.
  std::int32_t longest_token(std::string_view text) const;
  int vocab() const { return static_cast<int>(bytes_.size()); }
  int longest() const { return longest_; }  // bytes of the longest token

 private:
  std::vector<std::string> bytes_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;
  int longest_ = 0;
};

}  // namespace gapless
