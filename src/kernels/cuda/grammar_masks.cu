// The legal tokens of rows with a grammar; GrammarMasksParams in kernels.h says which. One launch of two sorts of blocks:
//
//   finders   the first blocks, one for each row: takes the row's last token, looks its place up in the cache, and lists the row
//             where the place is not there
//   walkers   the others, shared out among the rows of that list: each takes every few-th part of the vocabulary, a thread for each
//             token; the last walker of a row puts what was found into the cache
//
// Walkers wait until all finders have looked. Only they change the cache, and not before all finders have copied what they
// found, so no row meets an entry that is half made. A finder waits for nobody and has a lower number, so it starts no later
// than who waits for it. With nothing to walk a walker ends as soon as the finders have looked: a second kernel would cost
// another launch, and a grid of walkers for each row the starting of thousands of blocks.
//
// What a finder reads hangs together in a chain, each link an access to memory behind the other. So what can be asked for
// together is: a row's place beside its state, the classes of all bytes beside the token's bytes, all words of an entry before any
// of them is judged. And the sampling adds up its logits meanwhile (sample.cu).
//
// All this depends on nothing that the forward writes, and still comes behind it and not beside it: the forward of a decode step is
// one launch that has every multiprocessor to itself (decoder_kernel.cuh). Blocks in front of it delay that launch as much as they
// delay the sampling, and besides keep it from reading weights ahead.
#include <algorithm>

#include "base/keep_loop.h"
#include "grammar/state_loops.h"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/token_head.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Words of a row's mask that are one part.
constexpr int kPartWords = 32;
constexpr int kPartTokens = kPartWords * 32;
constexpr int kWordsPerWarp = kPartWords / kWarps;
// Tokens that need the grammar's tables are walked when there are so many, so that all threads have one.
constexpr int kMaxAway = 4 * kPartTokens;
// With so many blocks on each of an H200's 132 multiprocessors walkers and the finders of 64 rows are there at once, and a thread has
// registers enough: what does not fit into them goes to memory, from all threads of all walkers at once.
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kMaxWalkers = 200;
// Frames that a trial keeps in its thread's own memory. A token that closes or opens more is tried again by its warp, with room
// for all.
constexpr int kOwnFrames = 4;

using OwnProbe = GrammarProbe<kOwnFrames>;
using WholeProbe = GrammarProbe<kMaxGrammarDepth + 1>;

// One token, for take_text. The first of its bytes are in registers.
struct TokenText {
  const std::uint8_t* bytes;
  std::uint64_t head;
  int num_bytes;
  TextSummary summary;

  __device__ std::uint8_t byte(int i) const {
    return i < kTokenHeadBytes ? static_cast<std::uint8_t>(head >> 8 * i) : bytes[i];
  }
};

__device__ TokenText load_text(const TokenTexts& texts, int token) {
  const int begin = texts.first[token];
  return {texts.bytes + begin, texts.heads[token], texts.first[token + 1] - begin,
          texts.summaries[token]};
}

constexpr int kRowWords = sizeof(GrammarRow) / 4;
static_assert(sizeof(GrammarRow) % 4 == 0);

__device__ void copy_row(std::uint32_t* to, const std::uint32_t* from) {
  GAPLESS_KEEP_LOOP
  for (int i = threadIdx.x; i < kRowWords; i += kThreads) to[i] = from[i];
}

// A row on its way into shared memory: its words, shared out among the block's threads.
struct RowWords {
  static constexpr int kPerThread = (kRowWords + kThreads - 1) / kThreads;
  std::uint32_t own[kPerThread];
};

__device__ RowWords load_row(const GrammarRow& row) {
  const auto* const from = reinterpret_cast<const std::uint32_t*>(&row);
  RowWords words;
#pragma unroll
  for (int n = 0; n < RowWords::kPerThread; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads;
    words.own[n] = i < kRowWords ? __ldcg(&from[i]) : 0;
  }
  return words;
}

// The row of a block, in shared memory. (Such memory has no constructors.)
__device__ GrammarRow& share_row(const RowWords& from) {
  __shared__ std::uint32_t words[kRowWords];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < RowWords::kPerThread; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads;
    if (i < kRowWords) words[i] = from.own[n];
  }
  __syncthreads();
  return *reinterpret_cast<GrammarRow*>(words);
}

// Where the bytes of a row's last token are.
struct TextRange {
  int begin, end;
};

__device__ TextRange text_of(const TokenTexts& texts, int token) {
  if (token < 0 || token >= texts.vocab) return {0, 0};
  return {texts.first[token], texts.first[token + 1]};
}

// The block's threads, with its row in shared memory. The way along a token is one access of memory behind the other, so all
// threads bring its bytes and the classes of all bytes, and what one thread then looks up and changes is near to it.
__device__ void move_row(const GrammarMasksParams& p, TextRange text, bool begins,
                         const GrammarTables& grammar, GrammarRow& place) {
  constexpr int kNumBytes = 256;
  static_assert(kThreads == kNumBytes);  // a thread for each
  __shared__ std::uint8_t class_of[kNumBytes];
  __shared__ std::uint8_t bytes[kThreads];
  class_of[threadIdx.x] = grammar.class_of[threadIdx.x];
  bool legal = text.begin < text.end && place.state != kDeadGrammarState;
  for (int first = text.begin; first < text.end; first += kThreads) {
    const int num_bytes = min(kThreads, text.end - first);
    const int i = static_cast<int>(threadIdx.x);
    if (i < num_bytes) bytes[i] = p.texts.bytes[first + i];
    __syncthreads();
    if (i == 0) {
      for (int at = 0; legal && at < num_bytes; ++at) {
        legal = take_class(grammar, place, class_of[bytes[at]]);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    if (begins) {
      begin_row(grammar, place);
    } else if (!legal) {
      place.state = kDeadGrammarState;
    }
  }
  __syncthreads();
}

__device__ WalkInterval load_interval(const WalkInterval& from) {
  return {__ldcg(&from.least), __ldcg(&from.most)};
}

// An entry of a set.
struct Found {
  int way;  // -1: none
  int num_bounded;
};

constexpr int kWayThreads = kThreads / kGrammarCacheWays;

// A thread's share of an entry, on its way: some threads for each entry of a set. Of places of up to four frames it is all.
struct WayShare {
  static constexpr int kWords = 5;
  std::int32_t grammar, num_bounded;
  WalkInterval lengths, counts;
  std::uint32_t words[kWords];
};

__device__ const GrammarMaskEntry& entry_of(const GrammarMasksParams& p, int set) {
  const int way = static_cast<int>(threadIdx.x) / kWayThreads;
  return p.cache.entries[std::int64_t{set} * kGrammarCacheWays + way];
}

__device__ WayShare load_ways(const GrammarMasksParams& p, const GrammarRow& row, int set) {
  const GrammarMaskEntry& entry = entry_of(p, set);
  const int first = static_cast<int>(threadIdx.x) % kWayThreads, num_words = num_place_words(row);
  WayShare share{.grammar = __ldcg(&entry.grammar),
                 .num_bounded = __ldcg(&entry.num_bounded),
                 .lengths = load_interval(entry.lengths)};
  if (first <= row.depth) share.counts = load_interval(entry.counts[first]);
#pragma unroll
  for (int n = 0; n < WayShare::kWords; ++n) {
    const int i = first + n * kWayThreads;
    share.words[n] = i < num_words ? __ldcg(&entry.place[i]) : 0;
  }
  return share;
}

// The row's place in the set that `share` is of. The block's threads; the same in each of them.
__device__ Found find_way(const GrammarMasksParams& p, const GrammarTables& grammar,
                          const GrammarRow& row, int set, const WayShare& share) {
  __shared__ int differs[kGrammarCacheWays], num_bounded[kGrammarCacheWays];
  if (threadIdx.x < kGrammarCacheWays) differs[threadIdx.x] = 0;
  __syncthreads();
  const int way = static_cast<int>(threadIdx.x) / kWayThreads;
  const int first = static_cast<int>(threadIdx.x) % kWayThreads, num_words = num_place_words(row);
  if (first == 0) num_bounded[way] = share.num_bounded;
  std::uint32_t difference = 0;
#pragma unroll
  for (int n = 0; n < WayShare::kWords; ++n) {
    const int i = first + n * kWayThreads;
    if (i < num_words) difference |= share.words[n] ^ place_word(row, i);
  }
  if (first <= row.depth && !share.counts.contains(row.frames[first].count)) difference = 1;
  const GrammarMaskEntry& entry = entry_of(p, set);
  GAPLESS_KEEP_LOOP
  for (int i = first + WayShare::kWords * kWayThreads; i < num_words; i += kWayThreads) {
    difference |= __ldcg(&entry.place[i]) ^ place_word(row, i);
  }
  GAPLESS_KEEP_LOOP
  for (int depth = first + kWayThreads; depth <= row.depth; depth += kWayThreads) {
    if (!load_interval(entry.counts[depth]).contains(row.frames[depth].count)) difference = 1;
  }
  if (share.grammar != grammar.id || !share.lengths.contains(row.length) || difference != 0) {
    differs[way] = 1;
  }
  __syncthreads();
  Found found = {-1, 0};
  for (int w = kGrammarCacheWays - 1; w >= 0; --w) {
    if (differs[w] == 0) found = {w, num_bounded[w]};
  }
  return found;
}

// They do not overlap. Loads of several words are under way at a time: 51,200 tokens are one round.
__device__ void copy_words(std::uint32_t* __restrict__ to, const std::uint32_t* __restrict__ from,
                           int num_words) {
  constexpr int kInFlight = 10;
  for (int first = threadIdx.x; first < num_words; first += kThreads * kInFlight) {
    std::uint32_t words[kInFlight];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      const int i = first + n * kThreads;
      words[n] = i < num_words ? __ldcg(&from[i]) : 0;
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      const int i = first + n * kThreads;
      if (i < num_words) to[i] = words[n];
    }
  }
}

// The tokens of an entry about which the length decides, shared out among the block's threads.
struct BoundedTokens {
  static constexpr int kPerThread = (kMaxBoundedTokens + kThreads - 1) / kThreads;
  BoundedToken own[kPerThread];
};

__device__ BoundedTokens load_bounded(const BoundedToken* from, int num_bounded) {
  BoundedTokens tokens;
#pragma unroll
  for (int n = 0; n < BoundedTokens::kPerThread; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads;
    if (i >= num_bounded) {
      tokens.own[n].token = -1;
      continue;
    }
    tokens.own[n] = {__ldcg(&from[i].token), load_interval(from[i].lengths)};
  }
  return tokens;
}

// Puts their bits into a mask that the block wrote.
__device__ void apply_bounded(std::uint32_t* mask, const BoundedTokens& tokens, int length) {
  __syncthreads();
#pragma unroll
  for (const BoundedToken& one : tokens.own) {
    if (one.token < 0) continue;
    const std::uint32_t bit = 1u << one.token % 32;
    if (one.lengths.contains(length)) {
      atomicOr(&mask[one.token / 32], bit);
    } else {
      atomicAnd(&mask[one.token / 32], ~bit);
    }
  }
}

// The set of a row's place, in every thread of the block.
__device__ int set_of(const GrammarMasksParams& p, const GrammarTables& grammar,
                      const GrammarRow& row) {
  __shared__ unsigned sum;
  if (threadIdx.x == 0) sum = static_cast<unsigned>(grammar.id);
  __syncthreads();
  unsigned mine = 0;
  GAPLESS_KEEP_LOOP
  for (int i = threadIdx.x; i < num_place_words(row); i += kThreads) {
    mine += hash_of_word(place_word(row, i), i);
  }
  mine = __reduce_add_sync(kFullWarp, mine);
  if (threadIdx.x % kWarp == 0) atomicAdd(&sum, mine);
  __syncthreads();
  return static_cast<int>(sum % static_cast<unsigned>(p.cache.num_sets));
}

// The finder of the i-th row has looked, and may still be copying.
__device__ void tell_found(const GrammarMasksParams& p) {
  __syncthreads();
  if (threadIdx.x == 0) signal(p.arrivals->found);
}

// Of a row whose place is not in the cache. wanted: its index, row, grammar and set.
__device__ void list_search(const GrammarMasksParams& p, const GrammarSearch& wanted) {
  __shared__ unsigned place;
  if (threadIdx.x == 0) place = atomicAdd(&p.arrivals->found, kMissingRow) / kMissingRow;
  __syncthreads();
  GrammarSearch& search = p.searches[place];
  for (int depth = threadIdx.x; depth <= kMaxGrammarDepth; depth += kThreads) {
    search.counts[depth] = WalkInterval{};
  }
  if (threadIdx.x != 0) return;
  search.index = wanted.index;
  search.row = wanted.row;
  search.grammar = wanted.grammar;
  search.set = wanted.set;
  search.lengths = WalkInterval{};
  search.num_bounded = 0;
  search.num_arrived = 0;
}

// What a finder does for the i-th row.
__device__ void find(const GrammarMasksParams& p, std::int64_t i) {
  const int row = p.rows[i];
  if (row < 0) return tell_found(p);
  // All of it together, though a row without a grammar needs none of it.
  const RowState& state = p.row_states[row];
  const int done = state.done, grammar_index = state.grammar, last_token = state.input.id;
  const bool begins = state.num_generated == 0;
  const RowWords words = load_row(p.grammar_rows[row]);
  if (done != 0 || grammar_index == kNoGrammar) return tell_found(p);
  const GrammarTables grammar = p.grammars[grammar_index];
  const TextRange text = begins ? TextRange{0, 0} : text_of(p.texts, last_token);
  GrammarRow& place = share_row(words);
  move_row(p, text, begins, grammar, place);
  const auto keep_place = [&] {
    copy_row(reinterpret_cast<std::uint32_t*>(&p.grammar_rows[row]),
             reinterpret_cast<const std::uint32_t*>(&place));
  };
  std::uint32_t* const mask = p.masks + i * p.mask_stride;
  if (place.state == kDeadGrammarState) {
    tell_found(p);
    keep_place();
    GAPLESS_KEEP_LOOP
    for (int w = threadIdx.x; w < p.mask_stride; w += kThreads) mask[w] = 0;
    return;
  }
  const int set = set_of(p, grammar, place);
  const Found found = find_way(p, grammar, place, set, load_ways(p, place, set));
  if (found.way < 0) {
    // Walkers read both.
    keep_place();
    list_search(
        p,
        {.index = static_cast<std::int32_t>(i), .row = row, .grammar = grammar_index, .set = set});
    return tell_found(p);
  }
  // Before anything is written: to tell takes as long as what was written takes to arrive.
  tell_found(p);
  const std::int64_t at = std::int64_t{set} * kGrammarCacheWays + found.way;
  const BoundedTokens bounded =
      load_bounded(p.cache.bounded + at * kMaxBoundedTokens, found.num_bounded);
  copy_words(mask, p.cache.masks + at * p.mask_stride, p.mask_stride);
  if (found.num_bounded > 0) apply_bounded(mask, bounded, place.length);
  keep_place();
}

// What a warp's threads noted while they tried their tokens.
__device__ void note_lengths(const WalkInterval& mine, GrammarSearch& search) {
  const int least = __reduce_max_sync(kFullWarp, mine.least);
  const int most = __reduce_min_sync(kFullWarp, mine.most);
  if (threadIdx.x % kWarp != 0) return;
  if (least > 0) atomicMax(&search.lengths.least, least);
  if (most < INT32_MAX) atomicMin(&search.lengths.most, most);
}

// The last block of a row: what was found goes into the cache, unless somebody else changes its set just now, or was faster.
// Others may be copying what lies there until all finders are through.
__device__ void keep(const GrammarMasksParams& p, const GrammarTables& grammar,
                     const GrammarRow& row, std::int64_t k) {
  __shared__ int way;
  const GrammarSearch& search = p.searches[k];
  const int set = __ldcg(&search.set), num_bounded = __ldcg(&search.num_bounded);
  const bool is_listed = num_bounded <= kMaxBoundedTokens;
  // Under way while the set is locked. Who was faster by no more than that is not seen: then the place has two entries.
  const WayShare share = load_ways(p, row, set);
  unsigned turn = 0;  // of thread 0
  if (threadIdx.x == 0) {
    wait_for_count(p.arrivals->num_copied, static_cast<unsigned>(p.num_rows));
    way = -1;
    if (atomicCAS(&p.cache.locks[set], 0, 1) == 0) {
      turn = __ldcg(&p.cache.turns[set]);
      way = static_cast<int>(turn % kGrammarCacheWays);
    }
    __threadfence();
  }
  __syncthreads();
  if (way < 0) return;
  if (find_way(p, grammar, row, set, share).way < 0) {
    const std::int64_t at = std::int64_t{set} * kGrammarCacheWays + way;
    GrammarMaskEntry& entry = p.cache.entries[at];
    GAPLESS_KEEP_LOOP
    for (int i = threadIdx.x; i < num_place_words(row); i += kThreads) {
      entry.place[i] = place_word(row, i);
    }
    for (int depth = threadIdx.x; depth <= row.depth; depth += kThreads) {
      entry.counts[depth] = load_interval(search.counts[depth]);
    }
    copy_words(p.cache.masks + at * p.mask_stride,
               p.masks + std::int64_t{__ldcg(&search.index)} * p.mask_stride, p.mask_stride);
    if (is_listed) {
      constexpr int kWords = sizeof(BoundedToken) / 4;
      copy_words(reinterpret_cast<std::uint32_t*>(p.cache.bounded + at * kMaxBoundedTokens),
                 reinterpret_cast<const std::uint32_t*>(p.bounded + k * kMaxBoundedTokens),
                 num_bounded * kWords);
    }
    if (threadIdx.x == 0) {
      entry.grammar = grammar.id;
      entry.num_bounded = is_listed ? num_bounded : 0;
      entry.lengths = is_listed ? WalkInterval{} : load_interval(search.lengths);
      p.cache.turns[set] = turn + 1;
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(&p.cache.locks[set], 0);
}

// The table of the bytes in one state, in shared memory.
__device__ const StateLoops& share_loops(const GrammarTables& grammar, std::uint16_t state) {
  __shared__ StateLoops loops;
  __shared__ int counting;
  const int byte = static_cast<int>(threadIdx.x);
  const GrammarEdge edge =
      grammar.edges[std::int64_t{state} * grammar.num_classes + grammar.class_of[byte]];
  if (byte == 0) counting = state_loops::kNoAction;
  __syncthreads();
  const int action = state_loops::counting_action(grammar, state, edge);
  if (action != state_loops::kNoAction) atomicMin(&counting, action);
  __syncthreads();
  loops.bytes[byte] = state_loops::kind_of(state, edge, counting);
  if (byte == 0) {
    loops.state = state;
    loops.most = counting == state_loops::kNoAction ? -1 : grammar.actions[counting].max;
  }
  __syncthreads();
  return loops;
}

// The warp's threads: a place for each that `wants` one, from a counter in shared memory.
__device__ int take_place(int& counter, bool wants) {
  const unsigned wanting = __ballot_sync(kFullWarp, wants);
  if (wanting == 0) return 0;
  const int lane = threadIdx.x % kWarp;
  int first = 0;
  if (lane == 0) first = atomicAdd(&counter, __popc(wanting));
  return __shfl_sync(kFullWarp, first, 0) + __popc(wanting & ((1u << lane) - 1));
}

// What second bytes are illegal at a row's place, in shared memory. A thread each finds out where a first byte leads, and a warp each
// what is illegal behind it.
__device__ const SecondBytes& share_second_bytes(const GrammarMasksParams& p,
                                                 const GrammarTables& grammar,
                                                 const StateLoops& loops, const GrammarRow& place,
                                                 std::int64_t k) {
  __shared__ SecondBytes seconds;
  __shared__ std::uint16_t states[SecondBytes::kMaxAway];
  __shared__ std::uint8_t firsts[SecondBytes::kMaxAway];
  __shared__ int num_found;
  const int byte = static_cast<int>(threadIdx.x);
  const int warp = byte / kWarp, lane = byte % kWarp;
  static_assert(kWarps == SecondBytes::kNumWords);
  // Of the bytes that a lane looks at as second ones.
  std::uint8_t classes[SecondBytes::kNumWords];
#pragma unroll
  for (int word = 0; word < SecondBytes::kNumWords; ++word) {
    classes[word] = grammar.class_of[word * kWarp + lane];
  }
  if (byte == 0) num_found = 0;
  __syncthreads();
  const bool leads_away = SecondBytes::may_have_row(loops, byte);
  const int at = take_place(num_found, leads_away);
  const bool has_row = leads_away && at < SecondBytes::kMaxAway;
  if (has_row) firsts[at] = static_cast<std::uint8_t>(byte);
  seconds.row_of[byte] = has_row ? static_cast<std::uint8_t>(SecondBytes::kNumFixed + at)
                                 : SecondBytes::fixed_row(loops.bytes[byte]);
  const unsigned illegal_here = __ballot_sync(kFullWarp, loops.bytes[byte] == LoopByte::kIllegal);
  if (lane == 0) {
    seconds.illegal[SecondBytes::kFirstIsIllegal][warp] = ~0u;
    seconds.illegal[SecondBytes::kBehindLoops][warp] = illegal_here;
    seconds.illegal[SecondBytes::kUnknown][warp] = 0;
  }
  __syncthreads();
  const int num_away = min(num_found, SecondBytes::kMaxAway);
  // The first lanes of all warps: lanes that go different ways wait for each other.
  const int own = lane * kWarps + warp;
  if (own < num_away) {
    __align__(16) unsigned char raw_probe[sizeof(OwnProbe)];
    OwnProbe& probe = reinterpret_cast<OwnProbe&>(raw_probe);
    probe.begin(place, p.searches[k].counts);
    states[own] = state_loops::state_behind(grammar, probe, firsts[own]);
  }
  __syncthreads();
  GAPLESS_KEEP_LOOP
  for (int n = warp; n < num_away; n += kWarps) {
#pragma unroll
    for (int word = 0; word < SecondBytes::kNumWords; ++word) {
      const bool is_illegal =
          SecondBytes::is_illegal(grammar, states[n], firsts[n],
                                  static_cast<std::uint8_t>(word * kWarp + lane), classes[word]);
      const unsigned illegal = __ballot_sync(kFullWarp, is_illegal);
      if (lane == 0) seconds.illegal[SecondBytes::kNumFixed + n][word] = illegal;
    }
  }
  __syncthreads();
  return seconds;
}

// What a block notes of its parts of the vocabulary.
struct Notes {
  int num_away;
  std::int32_t away[kMaxAway];  // tokens that lead away from the row's state
  int num_bounded;              // where they are too many, not all are counted
  BoundedToken bounded[kMaxBoundedTokens];
};

// The warp's threads, each with a token that has a way at some lengths, or without one. Whether it is legal at the row's length.
__device__ bool note_token(Notes& notes, WalkInterval& same, int token, bool has_way,
                           const WalkInterval& lengths, int length) {
  const bool is_bounded = has_way && lengths.is_bounded();
  // The length decides about most tokens of a string of bounded length.
  const bool has_room = *static_cast<volatile int*>(&notes.num_bounded) <= kMaxBoundedTokens;
  const int at = take_place(notes.num_bounded, is_bounded && has_room);
  if (is_bounded) {
    if (has_room && at < kMaxBoundedTokens) notes.bounded[at] = {token, lengths};
    same.narrow_to_side(lengths, length);
  }
  return has_way && lengths.contains(length);
}

// One member of those that share a row's vocabulary: it walks every num_members-th part.
struct Member {
  int index, num_members, num_parts;  // num_parts: of the vocabulary

  __device__ int num_own() const { return (num_parts - 1 - index) / num_members + 1; }
  // The first token of its own-th part.
  __device__ int first_token(int own) const { return (index + own * num_members) * kPartTokens; }
};

// The tokens that were noted because they lead away from the row's state. The warps take equal shares: ways differ from token to
// token, and lanes that go different ways wait for each other.
__device__ void walk_away(const GrammarMasksParams& p, const GrammarTables& grammar,
                          const StateLoops& loops, const GrammarRow& place, std::int64_t k,
                          std::uint32_t* mask, Notes& notes, WalkInterval& same) {
  __shared__ __align__(16) unsigned char raw_probes[kWarps * sizeof(WholeProbe)];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int share = (notes.num_away + kWarps - 1) / kWarps;
  const int end = min((warp + 1) * share, notes.num_away);
  // Most warps have none. Of the others' probes nothing is written that is not used: what all threads of all walkers write into their
  // own memory is tens of megabytes, which the next forward finds in its way.
  if (warp * share >= end) return;
  GrammarSearch& search = p.searches[k];
  __align__(16) unsigned char raw_probe[sizeof(OwnProbe)];
  OwnProbe& probe = reinterpret_cast<OwnProbe&>(raw_probe);
  probe.begin(place, search.counts);
  for (int at = warp * share; at < end; at += kWarp) {
    const bool is_one = at + lane < end;
    const int token = notes.away[is_one ? at + lane : 0];
    const TokenText text = load_text(p.texts, token);
    probe.again();
    bool has_way = is_one && take_text(grammar, loops, probe, text);
    WalkInterval lengths = probe.lengths;
    for (unsigned left = __ballot_sync(kFullWarp, is_one && probe.overflowed); left != 0;
         left &= left - 1) {
      if (lane == __ffs(static_cast<int>(left)) - 1) {
        WholeProbe& again = reinterpret_cast<WholeProbe*>(raw_probes)[warp];
        again.begin(place, search.counts);
        has_way = take_text(grammar, loops, again, text);
        lengths = again.lengths;
      }
      __syncwarp();
    }
    if (note_token(notes, same, token, has_way, lengths, place.length)) {
      atomicOr(&mask[token / 32], 1u << token % 32);
    }
  }
}

// The summaries of one part's tokens, shared out among the block's threads: a warp has some of its words.
struct PartTexts {
  TextSummary own[kWordsPerWarp];
};

// Of the part at `first_token`, the n-th of this thread. It may be past the end.
__device__ int token_of(int first_token, int n) {
  return first_token + n * kThreads + static_cast<int>(threadIdx.x);
}

__device__ PartTexts load_part(const TokenTexts& texts, int first_token) {
  PartTexts part;
#pragma unroll
  for (int n = 0; n < kWordsPerWarp; ++n) {
    const int token = token_of(first_token, n);
    part.own[n] = token < texts.vocab ? texts.summaries[token] : TextSummary{};
  }
  return part;
}

// The tokens of a part that begin illegally or stay in the row's state; the others are noted. Where nothing limits how many
// characters may stay there, as in most strings, no token has a bound.
__device__ void walk_loops(const GrammarMasksParams& p, const GrammarTables& grammar,
                           const CharacterLoops& here, const SecondBytes& seconds,
                           const GrammarRow& place, int first_token, const PartTexts& texts,
                           std::uint32_t* mask, Notes& notes, WalkInterval& same) {
  const int lane = threadIdx.x % kWarp;
  const bool may_be_bounded = here.counts != 0 && here.most >= 0;
  unsigned away[kWordsPerWarp];
  int num_away = 0;
#pragma unroll
  for (int n = 0; n < kWordsPerWarp; ++n) {
    const int token = token_of(first_token, n);
    TrialLength run;
    run.begin_trial(place.length);
    LoopByte kind = take_at_once(here, seconds, texts.own[n], run);
    if (token == p.texts.eos_id) {
      kind = may_end(grammar, place) ? LoopByte::kStays : LoopByte::kIllegal;
      run.begin_trial(place.length);
    }
    const bool stays = kind == LoopByte::kStays;
    unsigned legal = __ballot_sync(kFullWarp, stays);
    if (may_be_bounded && legal != 0) {
      legal = __ballot_sync(kFullWarp,
                            note_token(notes, same, token, stays, run.lengths, place.length));
    }
    if (lane == 0 && token / 32 < p.mask_stride) mask[token / 32] = legal;
    away[n] = __ballot_sync(kFullWarp, kind == LoopByte::kLeadsAway);
    num_away += __popc(away[n]);
  }
  if (num_away == 0) return;
  int to = 0;
  if (lane == 0) to = atomicAdd(&notes.num_away, num_away);
  to = __shfl_sync(kFullWarp, to, 0);
#pragma unroll
  for (int n = 0; n < kWordsPerWarp; ++n) {
    const unsigned before = (1u << lane) - 1;
    if ((away[n] >> lane & 1) != 0) {
      notes.away[to + __popc(away[n] & before)] = token_of(first_token, n);
    }
    to += __popc(away[n]);
  }
}

// What a walker does for the k-th row whose place was not in the cache.
__device__ void walk(const GrammarMasksParams& p, std::int64_t k, const Member& member) {
  __shared__ __align__(16) unsigned char raw_notes[sizeof(Notes)];
  __shared__ bool is_last;
  __shared__ int first_bounded;
  Notes& notes = *reinterpret_cast<Notes*>(raw_notes);
  GrammarSearch& search = p.searches[k];
  const GrammarTables grammar = p.grammars[__ldcg(&search.grammar)];
  std::uint32_t* const mask = p.masks + std::int64_t{__ldcg(&search.index)} * p.mask_stride;
  const GrammarRow& place = share_row(load_row(p.grammar_rows[__ldcg(&search.row)]));
  if (threadIdx.x == 0) notes.num_away = notes.num_bounded = 0;
  PartTexts texts = load_part(p.texts, member.first_token(0));
  const CharacterLoops here = grammar.character_loops[place.state];
  const StateLoops& loops = share_loops(grammar, place.state);
  const SecondBytes& seconds = share_second_bytes(p, grammar, loops, place, k);
  WalkInterval same;  // lengths with the same tokens
  const int num_own = member.num_own();
  for (int own = 0; own < num_own; ++own) {
    const int first_token = member.first_token(own);
    const PartTexts next = load_part(p.texts, member.first_token(own + 1));
    walk_loops(p, grammar, here, seconds, place, first_token, texts, mask, notes, same);
    texts = next;
    // Those who noted last see all that was noted.
    const bool is_full = *static_cast<volatile int*>(&notes.num_away) > kMaxAway - kPartTokens;
    if (__syncthreads_or(is_full || own + 1 == num_own) == 0) continue;
    walk_away(p, grammar, loops, place, k, mask, notes, same);
    __syncthreads();
    if (threadIdx.x == 0) notes.num_away = 0;
    __syncthreads();
  }
  note_lengths(same, search);
  if (notes.num_bounded > 0) {
    if (threadIdx.x == 0) {
      first_bounded = static_cast<int>(
          atomicAdd(&search.num_bounded, static_cast<unsigned>(notes.num_bounded)));
    }
    __syncthreads();
    // Where they are too many nobody reads the list.
    if (first_bounded + notes.num_bounded <= kMaxBoundedTokens) {
      BoundedToken* const to = p.bounded + k * kMaxBoundedTokens + first_bounded;
      GAPLESS_KEEP_LOOP
      for (int n = threadIdx.x; n < notes.num_bounded; n += kThreads) to[n] = notes.bounded[n];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto count = static_cast<unsigned>(num_own);
    // No fence of all threads: that would empty the L1 of a multiprocessor on which others are walking.
    is_last =
        signal_by(search.num_arrived, count) + count == static_cast<unsigned>(member.num_parts);
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  keep(p, grammar, place, k);
}

// One thread: until all finders have looked. How many rows there are to walk.
__device__ int wait_for_finders(const GrammarArrivals& arrivals, int num_rows) {
  unsigned found;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(found)
                 : "l"(&arrivals.found)
                 : "memory");
  } while (found % kMissingRow != static_cast<unsigned>(num_rows));
  return static_cast<int>(found / kMissingRow);
}

// Blocks: num_rows finders, then walkers.
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    grammar_masks_kernel(GrammarMasksParams p, int num_parts) {
  // In this order: what the sampling reads before it waits was written before this kernel (launch_overlap.cuh).
  wait_for_predecessor();
  let_successor_start();
  const int walker = static_cast<int>(blockIdx.x) - p.num_rows;
  if (walker < 0) {
    find(p, blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) signal(p.arrivals->num_copied);
  } else {
    __shared__ int num_missing;
    if (threadIdx.x == 0) num_missing = wait_for_finders(*p.arrivals, p.num_rows);
    __syncthreads();
    // The rows share the walkers.
    const int num_walkers = static_cast<int>(gridDim.x) - p.num_rows;
    const int num_teams = min(num_missing, num_walkers);
    for (int k = num_teams > 0 ? walker % num_teams : 0; k < num_missing; k += num_teams) {
      const int team = walker % num_teams;
      const Member member = {walker / num_teams, (num_walkers - 1 - team) / num_teams + 1,
                             num_parts};
      if (member.index < num_parts) walk(p, k, member);
    }
    __syncthreads();
  }
  // The last block: nobody looks at the counts any more.
  if (threadIdx.x != 0 || atomicAdd(&p.arrivals->num_ended, 1u) + 1 != gridDim.x) return;
  *p.arrivals = GrammarArrivals{};
}

}  // namespace

Status grammar_masks(Stream& stream, const GrammarMasksParams& params) {
  if (params.num_rows == 0) return ok_status();
  const int num_parts = static_cast<int>(blocks_for(params.mask_stride, kPartWords));
  const int num_walkers = std::min(kMaxWalkers, num_parts * params.num_rows);
  return launch(
      "grammar_masks", stream,
      {.grid = dim3(static_cast<unsigned>(params.num_rows + num_walkers)), .block = dim3(kThreads)},
      grammar_masks_kernel, params, num_parts);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
