#include "text/bpe.h"

#include <queue>
#include <unordered_set>

#include "base/check.h"
#include "text/word_cache.h"

namespace gapless {
namespace {

std::uint64_t pair_key(TokenId left, TokenId right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left.value)} << 32) |
         static_cast<std::uint32_t>(right.value);
}

}  // namespace

// A merge that was possible when it was pushed. It is stale when one of its symbols was merged
// since.
struct Bpe::Candidate {
  std::uint32_t rank;
  std::int32_t position;  // of the left symbol
  TokenId merged;

  // std::priority_queue puts the largest first; we want the lowest rank, then the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

Bpe::Bpe(const std::array<TokenId, 256>& byte_tokens, std::span<const Merge> merges)
    : byte_tokens_(byte_tokens), cache_(std::make_unique<WordCache>()) {
  rules_.reserve(merges.size());
  std::uint32_t rank = 0;
  for (const Merge& merge : merges) {
    rules_.insert_or_assign(pair_key(merge.left, merge.right), Rule{rank++, merge.merged});
  }
}

Bpe::Bpe(Bpe&&) noexcept = default;
Bpe& Bpe::operator=(Bpe&&) noexcept = default;
Bpe::~Bpe() = default;

void Bpe::forbid(std::span<const TokenId> tokens) {
  const std::unordered_set<TokenId> forbidden(tokens.begin(), tokens.end());
  std::erase_if(rules_, [&](const auto& rule) { return forbidden.contains(rule.second.merged); });
  cache_ = std::make_unique<WordCache>();
}

const Bpe::Rule* Bpe::find_rule(TokenId left, TokenId right) const {
  const auto found = rules_.find(pair_key(left, right));
  return found == rules_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& tokens) const {
  if (cache_->find(word, tokens)) return;
  const std::size_t first = tokens.size();
  merge_word(word, tokens);
  cache_->insert(word, std::span(tokens).subspan(first));
}

void Bpe::merge_word(std::string_view word, std::vector<TokenId>& tokens) const {
  const auto length = static_cast<std::int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (std::int32_t i = 0; i < length; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const TokenId token = byte_tokens_[static_cast<unsigned char>(word[at])];
    GAPLESS_CHECK(token.valid());
    symbols[at] = {token, i - 1, i + 1 < length ? i + 1 : -1};
  }
  const auto symbol_at = [&](std::int32_t i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };

  std::priority_queue<Candidate> candidates;
  const auto push_pair_at = [&](std::int32_t left) {
    if (left < 0 || symbol_at(left).next < 0) return;
    const Symbol& right = symbol_at(symbol_at(left).next);
    if (const Rule* rule = find_rule(symbol_at(left).token, right.token)) {
      candidates.push({rule->rank, left, rule->merged});
    }
  };
  for (std::int32_t i = 0; i + 1 < length; ++i) push_pair_at(i);

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbol_at(best.position);
    if (!left.token.valid() || left.next < 0) continue;  // merged away, or now the last one
    Symbol& right = symbol_at(left.next);
    const Rule* rule = find_rule(left.token, right.token);
    if (rule == nullptr || rule->merged != best.merged) continue;

    left.token = best.merged;
    right.token = TokenId();
    left.next = right.next;
    if (left.next >= 0) symbol_at(left.next).previous = best.position;
    push_pair_at(left.previous);
    push_pair_at(best.position);
  }

  for (std::int32_t i = length > 0 ? 0 : -1; i >= 0; i = symbol_at(i).next) {
    tokens.push_back(symbol_at(i).token);
  }
}

}  // namespace gapless
