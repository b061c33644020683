// The contract is GrammarMasksParams' comment in kernels.h. Row by row, so that a row finds what the one before it found; a
// vocabulary is walked by all cores.
#include <algorithm>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "grammar/state_loops.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

using Probe = GrammarProbe<kMaxGrammarDepth + 1>;

constexpr int kWordsPerTask = 64;  // of a mask
// To look behind first bytes that lead away takes longer than it saves with fewer tokens.
constexpr int kManyTokens = 8192;

// For take_text.
struct TokenText {
  const std::uint8_t* bytes;
  int num_bytes;
  TextSummary summary;

  std::uint8_t byte(int i) const { return bytes[i]; }
};

bool take_token(const GrammarTables& grammar, const StateLoops& loops, const SecondBytes& seconds,
                const TokenTexts& texts, std::int32_t token, Probe& probe) {
  probe.again();
  const TextSummary summary = texts.summaries[token];
  const LoopByte kind = take_at_once(grammar.character_loops[loops.state], seconds, summary, probe);
  if (kind != LoopByte::kLeadsAway) return kind == LoopByte::kStays;
  const std::int32_t begin = texts.first[token];
  return take_text(grammar, loops, probe,
                   TokenText{texts.bytes + begin, texts.first[token + 1] - begin, summary});
}

// What else tokens were found to depend on.
struct Extent {
  WalkInterval lengths;  // with the same tokens
  WalkInterval counts[kMaxGrammarDepth + 1];
  std::vector<BoundedToken> bounded;  // tokens about which the length decides
};

// The tokens of some words of a mask.
Extent walk_words(const GrammarTables& grammar, const StateLoops& loops, const SecondBytes& seconds,
                  const GrammarRow& row, const TokenTexts& texts, int first_word,
                  std::span<std::uint32_t> words) {
  Extent extent;
  Probe probe;
  probe.begin(row, extent.counts);
  const auto is_legal = [&](std::int32_t token) {
    if (token == texts.eos_id) return may_end(grammar, row);
    if (!take_token(grammar, loops, seconds, texts, token, probe)) return false;
    if (probe.lengths.is_bounded()) {
      extent.bounded.push_back({token, probe.lengths});
      extent.lengths.narrow_to_side(probe.lengths, row.length);
    }
    return probe.lengths.contains(row.length);
  };
  for (std::size_t w = 0; w < words.size(); ++w) {
    const std::int32_t first_token = (first_word + static_cast<std::int32_t>(w)) * 32;
    words[w] = 0;
    for (std::int32_t bit = 0; bit < 32 && first_token + bit < texts.vocab; ++bit) {
      if (is_legal(first_token + bit)) words[w] |= 1u << bit;
    }
  }
  return extent;
}

Extent walk_vocabulary(const GrammarTables& grammar, const GrammarRow& row, const TokenTexts& texts,
                       std::span<std::uint32_t> mask) {
  const StateLoops loops = find_loops(grammar, row.state);
  Extent all;
  Probe probe;
  probe.begin(row, all.counts);
  const SecondBytes seconds = find_second_bytes(
      grammar, loops, probe, texts.vocab >= kManyTokens ? SecondBytes::kMaxAway : 0);
  const std::size_t num_tasks = (mask.size() + kWordsPerTask - 1) / kWordsPerTask;
  std::vector<Extent> extents(num_tasks);
  ThreadPool::shared().parallel_for(static_cast<std::int64_t>(num_tasks), [&](std::int64_t task) {
    const auto first = static_cast<std::size_t>(task) * kWordsPerTask;
    extents[static_cast<std::size_t>(task)] =
        walk_words(grammar, loops, seconds, row, texts, static_cast<int>(first),
                   mask.subspan(first, std::min<std::size_t>(kWordsPerTask, mask.size() - first)));
  });
  for (const Extent& one : extents) {
    all.lengths.narrow(one.lengths);
    for (int depth = 0; depth <= row.depth; ++depth) all.counts[depth].narrow(one.counts[depth]);
    all.bounded.insert(all.bounded.end(), one.bounded.begin(), one.bounded.end());
  }
  if (all.bounded.size() > kMaxBoundedTokens) {
    all.bounded.clear();
  } else {
    all.lengths = WalkInterval{};
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
  const auto bounded_at = [&](std::size_t at) { return cache.bounded + at * kMaxBoundedTokens; };
  for (std::size_t at = first; at < first + kGrammarCacheWays; ++at) {
    if (!is_of(cache.entries[at], grammar, row)) continue;
    std::copy_n(mask_at(at), mask.size(), mask.begin());
    const BoundedToken* const bounded = bounded_at(at);
    for (int i = 0; i < cache.entries[at].num_bounded; ++i) {
      const auto [token, lengths] = bounded[i];
      const std::uint32_t bit = 1u << (token % 32);
      std::uint32_t& word = mask[static_cast<std::size_t>(token) / 32];
      word = lengths.contains(row.length) ? word | bit : word & ~bit;
    }
    return;
  }
  const Extent extent = walk_vocabulary(grammar, row, params.texts, mask);
  const std::size_t at = first + cache.turns[set]++ % kGrammarCacheWays;
  GrammarMaskEntry& entry = cache.entries[at];
  entry.grammar = grammar.id;
  entry.num_bounded = static_cast<std::int32_t>(extent.bounded.size());
  entry.lengths = extent.lengths;
  std::copy_n(extent.counts, row.depth + 1, entry.counts);
  for (int i = 0; i < num_place_words(row); ++i) entry.place[i] = place_word(row, i);
  std::copy(mask.begin(), mask.end(), mask_at(at));
  std::copy(extent.bounded.begin(), extent.bounded.end(), bounded_at(at));
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
