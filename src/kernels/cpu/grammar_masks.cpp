// The contract is GrammarMasksParams' comment in kernels.h. Row by row, so that a row finds what the one before it found; a
// vocabulary is walked by all cores.
#include <algorithm>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

using Probe = GrammarProbe<kMaxGrammarDepth + 1>;

constexpr int kWordsPerTask = 64;  // of a mask

bool take_token(const GrammarTables& grammar, const TokenTexts& texts, std::int32_t token,
                Probe& probe) {
  const std::int32_t begin = texts.first[token], end = texts.first[token + 1];
  if (begin == end) return false;
  probe.again();
  for (std::int32_t i = begin; i < end; ++i) {
    if (!take_byte(grammar, probe, texts.bytes[i])) return false;
  }
  return true;
}

// For which lengths, and which counts by depth, tokens are legal.
struct Extent {
  WalkInterval lengths;
  WalkInterval counts[kMaxGrammarDepth + 1];
};

// The tokens of some words of a mask; returns for what they are those.
Extent walk_words(const GrammarTables& grammar, const GrammarRow& row, const TokenTexts& texts,
                  int first_word, std::span<std::uint32_t> words) {
  Extent extent;
  Probe probe;
  probe.begin(row, extent.counts);
  for (std::size_t w = 0; w < words.size(); ++w) {
    const std::int32_t first_token = (first_word + static_cast<std::int32_t>(w)) * 32;
    words[w] = 0;
    for (std::int32_t bit = 0; bit < 32 && first_token + bit < texts.vocab; ++bit) {
      const std::int32_t token = first_token + bit;
      const bool legal =
          token == texts.eos_id ? may_end(grammar, row) : take_token(grammar, texts, token, probe);
      if (legal) words[w] |= 1u << bit;
    }
  }
  extent.lengths = probe.watch.lengths;
  return extent;
}

void narrow(WalkInterval& all, const WalkInterval& one) {
  all.least = std::max(all.least, one.least);
  all.most = std::min(all.most, one.most);
}

Extent walk_vocabulary(const GrammarTables& grammar, const GrammarRow& row, const TokenTexts& texts,
                       std::span<std::uint32_t> mask) {
  const std::size_t num_tasks = (mask.size() + kWordsPerTask - 1) / kWordsPerTask;
  std::vector<Extent> extents(num_tasks);
  ThreadPool::shared().parallel_for(static_cast<std::int64_t>(num_tasks), [&](std::int64_t task) {
    const auto first = static_cast<std::size_t>(task) * kWordsPerTask;
    extents[static_cast<std::size_t>(task)] =
        walk_words(grammar, row, texts, static_cast<int>(first),
                   mask.subspan(first, std::min<std::size_t>(kWordsPerTask, mask.size() - first)));
  });
  Extent all;
  for (const Extent& one : extents) {
    narrow(all.lengths, one.lengths);
    for (int depth = 0; depth <= row.depth; ++depth) narrow(all.counts[depth], one.counts[depth]);
  }
  return all;
}

bool is_of(const GrammarMaskEntry& entry, const GrammarTables& grammar, const GrammarRow& row) {
  if (entry.grammar != grammar.id || !entry.lengths.contains(row.length)) return false;
  for (int i = 0; i < num_place_words(row); ++i) {
    if (entry.place[i] != place_word(row, i)) return false;
  }
  for (int depth = 0; depth <= row.depth; ++depth) {
    if (!entry.counts[depth].contains(row.frames[depth].count)) return false;
  }
  return true;
}

void find_tokens(const GrammarMasksParams& params, const GrammarTables& grammar,
                 const GrammarRow& row, std::span<std::uint32_t> mask) {
  const GrammarMaskCache& cache = params.cache;
  auto hash = static_cast<std::uint32_t>(grammar.id);
  for (int i = 0; i < num_place_words(row); ++i) {
    hash += hash_of_word(place_word(row, i), i);
  }
  const std::size_t set = hash % static_cast<std::uint32_t>(cache.num_sets);
  const std::size_t first = set * kGrammarCacheWays;
  const auto mask_at = [&](std::size_t at) { return cache.masks + at * mask.size(); };
  for (std::size_t at = first; at < first + kGrammarCacheWays; ++at) {
    if (!is_of(cache.entries[at], grammar, row)) continue;
    std::copy_n(mask_at(at), mask.size(), mask.begin());
    return;
  }
  const Extent extent = walk_vocabulary(grammar, row, params.texts, mask);
  const std::size_t at = first + cache.turns[set]++ % kGrammarCacheWays;
  GrammarMaskEntry& entry = cache.entries[at];
  entry.grammar = grammar.id;
  entry.lengths = extent.lengths;
  std::copy_n(extent.counts, row.depth + 1, entry.counts);
  for (int i = 0; i < num_place_words(row); ++i) entry.place[i] = place_word(row, i);
  std::copy(mask.begin(), mask.end(), mask_at(at));
}

}  // namespace

void grammar_masks(const GrammarMasksParams& params) {
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    const std::int32_t row = params.rows[i];
    if (row < 0) continue;
    const RowState& state = params.row_states[row];
    if (state.done != 0 || state.grammar == kNoGrammar) continue;
    reference::move_grammar_row(params, row);
    const std::span mask(params.masks + i * params.mask_stride,
                         static_cast<std::size_t>(params.mask_stride));
    const GrammarRow& place = params.grammar_rows[row];
    if (place.state == kDeadGrammarState) {
      std::fill(mask.begin(), mask.end(), 0u);
    } else {
      find_tokens(params, params.grammars[state.grammar], place, mask);
    }
  }
}

}  // namespace gapless::cpu
