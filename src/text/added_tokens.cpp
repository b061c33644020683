#include "text/added_tokens.h"

namespace gapless {
namespace {

std::uint64_t edge_key(std::uint32_t node, char byte) {
  return (std::uint64_t{node} << 8) | static_cast<unsigned char>(byte);
}

}  // namespace

void AddedTokenSet::add(std::string_view content, TokenId token) {
  Node* last = nullptr;
  std::uint32_t node = 0;
  for (const char byte : content) {
    const auto next = static_cast<std::uint32_t>(nodes_.size() + 1);
    last = &nodes_.try_emplace(edge_key(node, byte), Node{next, TokenId()}).first->second;
    node = last->node;
  }
  if (last != nullptr) last->token = token;
}

AddedTokenSet::Match AddedTokenSet::longest_match_at_start(std::string_view text) const {
  Match longest;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto found = nodes_.find(edge_key(node, text[i]));
    if (found == nodes_.end()) break;
    node = found->second.node;
    if (found->second.token.valid()) longest = {i + 1, found->second.token};
  }
  return longest;
}

void AddedTokenSet::split(std::string_view text,
                          const std::function<void(std::string_view)>& on_text,
                          const std::function<void(TokenId)>& on_token) const {
  std::size_t text_begin = 0, i = 0;
  while (i < text.size() && !empty()) {
    const Match match = longest_match_at_start(text.substr(i));
    if (match.num_bytes == 0) {
      ++i;
      continue;
    }
    if (i > text_begin) on_text(text.substr(text_begin, i - text_begin));
    on_token(match.token);
    i += match.num_bytes;
    text_begin = i;
  }
  if (text_begin < text.size()) on_text(text.substr(text_begin));
}

}  // namespace gapless
