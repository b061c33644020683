#include "constraint/closing_tokens.h"

#include <algorithm>
#include <string_view>

#include "constraint/legal_tokens.h"
#include "grammar/grammar_limits.h"

namespace gapless {
namespace {

// Entries of each cache; a full one is emptied.
constexpr std::size_t kMaxKept = 2048;
// More tokens than an answer can have.
constexpr int kTooMany = 1 << 30;

template <typename T>
void append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename Map, typename Value>
void keep(Map& map, const std::string& key, Value value) {
  if (map.size() >= kMaxKept) map.clear();
  map.insert_or_assign(key, std::move(value));
}

}  // namespace

std::string key_of_row(const GrammarRow& row, std::int32_t largest_count) {
  std::string key;
  key.reserve(16 + row.depth * sizeof(GrammarFrame));
  append(key, row.state);
  append(key, row.depth);
  for (std::size_t i = 0; i <= row.depth; ++i) {
    const GrammarFrame& frame = row.frames[i];
    append(key, frame.next);
    append(key, std::min(frame.count, largest_count));
    append(key, frame.seen);
  }
  return key;
}

// In the longest tokens that fit; empty: a byte of it is no token's.
std::vector<std::int32_t> ClosingTokens::tokens_of(const std::string& piece) const {
  {
    MutexLock lock(mutex_);
    if (const auto known = pieces_.find(piece); known != pieces_.end()) return known->second;
  }
  std::vector<std::int32_t> tokens;
  for (std::string_view rest = piece; !rest.empty();) {
    const std::int32_t token = vocabulary_.longest_token(rest);
    if (token < 0) return {};
    tokens.push_back(token);
    rest.remove_prefix(vocabulary_.bytes_of(token).size());
  }
  MutexLock lock(mutex_);
  keep(pieces_, piece, tokens);
  return tokens;
}

std::optional<std::vector<std::int32_t>> ClosingTokens::find(const GrammarRow& row) const {
  long work = kMaxClosableWork;
  return find(row, work);
}

std::optional<std::vector<std::int32_t>> ClosingTokens::find(const GrammarRow& row,
                                                             long& work) const {
  const auto pieces = text_.find(row, work);
  if (!pieces) return std::nullopt;
  std::vector<std::int32_t> tokens;
  for (const std::string& piece : *pieces) {
    const std::vector<std::int32_t> more = tokens_of(piece);
    if (more.empty()) return std::nullopt;
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return tokens;
}

void ClosingTokens::keep_closable(const GrammarRow& row, const std::string& key, int num_left,
                                  std::span<std::uint32_t> mask) const {
  {
    MutexLock lock(mutex_);
    const auto known = worst_.find(key);
    if (known != worst_.end() && known->second.length <= row.length &&
        known->second.num_tokens <= num_left) {
      return;
    }
  }
  // Many tokens lead to the same place.
  std::unordered_map<std::string, int> counts;
  int worst = 0;
  long work = kMaxClosableWork;
  visit_legal_tokens(grammar_, row, vocabulary_,
                     [&](const GrammarRow& behind, std::span<const std::int32_t> tokens) {
                       std::string place = key_of_row(behind, INT32_MAX);
                       append(place, behind.length);
                       const auto [at, is_new] = counts.try_emplace(std::move(place), 0);
                       if (is_new) {
                         const auto rest = find(behind, work);
                         at->second = rest ? static_cast<int>(rest->size()) : kTooMany;
                       }
                       worst = std::max(worst, at->second);
                       if (at->second <= num_left) return;
                       for (const std::int32_t token : tokens) {
                         mask[static_cast<std::size_t>(token) / 32] &= ~(1u << (token % 32));
                       }
                     });
  if (work <= 0) return;
  MutexLock lock(mutex_);
  keep(worst_, key, Worst{row.length, worst});
}

}  // namespace gapless
