// A small cache of the tokens of short words: fixed size, direct-mapped, safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace gapless {

class WordCache {
 public:
  // Appends the tokens of `word` to `tokens` when it is known.
  bool find(std::string_view word, std::vector<TokenId>& tokens) {
    if (word.empty() || word.size() > kMaxWordBytes) return false;
    const std::size_t slot = slot_of(word);
    const std::lock_guard lock(mutexes_[slot % kNumMutexes]);
    const Entry& entry = entries_[slot];
    if (entry.word != word) return false;
    tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.end());
    return true;
  }

  // Replaces whatever word had the same slot.
  void insert(std::string_view word, std::span<const TokenId> tokens) {
    if (word.empty() || word.size() > kMaxWordBytes) return;
    const std::size_t slot = slot_of(word);
    const std::lock_guard lock(mutexes_[slot % kNumMutexes]);
    entries_[slot].word = word;
    entries_[slot].tokens.assign(tokens.begin(), tokens.end());
  }

 private:
  static constexpr std::size_t kNumEntries = 4096;
  static constexpr std::size_t kNumMutexes = 16;
  static constexpr std::size_t kMaxWordBytes = 32;  // bounds the cache to about 1 MiB

  struct Entry {
    std::string word;
    std::vector<TokenId> tokens;
  };

  static std::size_t slot_of(std::string_view word) {
    return std::hash<std::string_view>()(word) % kNumEntries;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kNumEntries);
  std::array<std::mutex, kNumMutexes> mutexes_;
};

}  // namespace gapless
