#include "constraint/vocabulary_trie.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/limits.h"

namespace gapless {

VocabularyTrie::VocabularyTrie(std::vector<std::string> bytes) : bytes_(std::move(bytes)) {
  static_assert(kMaxTokenBytes <= 0xFFFF);
  std::vector<std::int32_t> sorted;
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    GAPLESS_CHECK(bytes_[i].size() <= kMaxTokenBytes);
    if (!bytes_[i].empty()) sorted.push_back(static_cast<std::int32_t>(i));
    longest_ = std::max(longest_, static_cast<int>(bytes_[i].size()));
  }
  std::sort(sorted.begin(), sorted.end(), [this](std::int32_t a, std::int32_t b) {
    return bytes_of(a) != bytes_of(b) ? bytes_of(a) < bytes_of(b) : a < b;
  });
  // Equal beginnings are neighbours now. The nodes of the token at hand that are still open:
  std::vector<std::size_t> open;
  const std::string* before = nullptr;
  const auto close = [&](std::size_t depth) {
    while (open.size() > depth) {
      nodes_[open.back()].end = static_cast<std::int32_t>(nodes_.size());
      open.pop_back();
    }
  };
  for (const std::int32_t token : sorted) {
    const std::string& text = bytes_of(token);
    std::size_t common = 0;
    while (before != nullptr && common < std::min(text.size(), before->size()) &&
           text[common] == (*before)[common]) {
      ++common;
    }
    close(common);
    for (std::size_t i = common; i < text.size(); ++i) {
      open.push_back(nodes_.size());
      nodes_.push_back({.byte = static_cast<std::uint8_t>(text[i]),
                        .depth = static_cast<std::uint16_t>(i + 1),
                        .first_token = static_cast<std::int32_t>(tokens_.size())});
    }
    ++nodes_[open.back()].num_tokens;
    tokens_.push_back(token);
    before = &text;
  }
  close(0);
}

std::int32_t VocabularyTrie::longest_token(std::string_view text) const {
  std::int32_t longest = -1;
  std::size_t node = 0, end = nodes_.size();
  for (const char byte : text) {
    while (node < end && nodes_[node].byte != static_cast<std::uint8_t>(byte)) {
      node = static_cast<std::size_t>(nodes_[node].end);
    }
    if (node >= end) break;
    if (nodes_[node].num_tokens > 0) longest = tokens_of(nodes_[node]).front();
    end = static_cast<std::size_t>(nodes_[node].end);
    ++node;
  }
  return longest;
}

}  // namespace gapless
