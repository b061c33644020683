// The legal tokens of rows with a grammar; GrammarMasksParams in kernels.h says which. One launch of two sorts of blocks:
//
//   finders   the first blocks, one for each row: takes the row's last token, looks its place up in the cache, and lists the row
//             where the place is not there
//   walkers   the others, in a few teams, each of which takes every few-th row of that list: a warp for 32 tokens, a thread for
//             each of them; the last walker of a row puts what was found into the cache
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

#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Walkers of a team: each thread tries one to three tokens of 51,200 to 151,936.
constexpr int kMaxTeamBlocks = 200;
// Rows that are walked at a time. With so many blocks on each of an H200's 132 multiprocessors those of a launch of 64 rows are
// there at once.
constexpr int kMaxTeams = 2;
constexpr int kBlocksPerMultiprocessor = 4;
// Frames that a trial keeps in its thread's own memory. A token that closes or opens more is tried again by its warp, with room
// for all.
constexpr int kOwnFrames = 4;

using OwnProbe = GrammarProbe<kOwnFrames>;
using WholeProbe = GrammarProbe<kMaxGrammarDepth + 1>;

template <typename Row>
__device__ bool take_token(const GrammarTables& grammar, const TokenTexts& texts, int token,
                           Row& row) {
  const int begin = texts.first[token], end = texts.first[token + 1];
  for (int i = begin; i < end; ++i) {
    if (!take_byte(grammar, row, texts.bytes[i])) return false;
  }
  return begin < end;
}

constexpr int kRowWords = sizeof(GrammarRow) / 4;
static_assert(sizeof(GrammarRow) % 4 == 0);

__device__ void copy_row(std::uint32_t* to, const std::uint32_t* from) {
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

// Which entry of a set the row's place is; -1: none. The block's threads, some for each entry; the same in each of them.
__device__ int find_way(const GrammarMasksParams& p, const GrammarTables& grammar,
                        const GrammarRow& row, int set) {
  constexpr int kWayThreads = kThreads / kGrammarCacheWays;
  __shared__ int differs[kGrammarCacheWays];
  if (threadIdx.x < kGrammarCacheWays) differs[threadIdx.x] = 0;
  __syncthreads();
  const int way = static_cast<int>(threadIdx.x) / kWayThreads;
  const GrammarMaskEntry& entry = p.cache.entries[std::int64_t{set} * kGrammarCacheWays + way];
  const std::int32_t id = __ldcg(&entry.grammar);
  const WalkInterval lengths = load_interval(entry.lengths);
  std::uint32_t difference = 0;
  for (int i = threadIdx.x % kWayThreads; i < num_place_words(row); i += kWayThreads) {
    difference |= __ldcg(&entry.place[i]) ^ place_word(row, i);
  }
  for (int depth = threadIdx.x % kWayThreads; depth <= row.depth; depth += kWayThreads) {
    const WalkInterval counts = load_interval(entry.counts[depth]);
    if (!counts.contains(row.frames[depth].count)) difference = 1;
  }
  if (id != grammar.id || !lengths.contains(row.length) || difference != 0) differs[way] = 1;
  __syncthreads();
  int found = -1;
  for (int w = kGrammarCacheWays - 1; w >= 0; --w) {
    if (differs[w] == 0) found = w;
  }
  return found;
}

// They do not overlap.
__device__ void copy_mask(std::uint32_t* __restrict__ to, const std::uint32_t* __restrict__ from,
                          int num_words) {
#pragma unroll 8
  for (int i = threadIdx.x; i < num_words; i += kThreads) to[i] = __ldcg(&from[i]);
}

// The set of a row's place, in every thread of the block.
__device__ int set_of(const GrammarMasksParams& p, const GrammarTables& grammar,
                      const GrammarRow& row) {
  __shared__ unsigned sum;
  if (threadIdx.x == 0) sum = static_cast<unsigned>(grammar.id);
  __syncthreads();
  unsigned mine = 0;
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

// Of a row whose place is not in the cache.
__device__ void list_search(const GrammarMasksParams& p, std::int64_t i, int set) {
  __shared__ unsigned place;
  if (threadIdx.x == 0) place = atomicAdd(&p.arrivals->found, kMissingRow) / kMissingRow;
  __syncthreads();
  GrammarSearch& search = p.searches[place];
  for (int depth = threadIdx.x; depth <= kMaxGrammarDepth; depth += kThreads) {
    search.counts[depth] = WalkInterval{};
  }
  if (threadIdx.x != 0) return;
  search.index = static_cast<std::int32_t>(i);
  search.set = set;
  search.lengths = WalkInterval{};
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
    for (int w = threadIdx.x; w < p.mask_stride; w += kThreads) mask[w] = 0;
    return;
  }
  const int set = set_of(p, grammar, place);
  const int way = find_way(p, grammar, place, set);
  if (way < 0) {
    // Walkers read both.
    keep_place();
    list_search(p, i, set);
    return tell_found(p);
  }
  // Before anything is written: to tell takes as long as what was written takes to arrive.
  tell_found(p);
  const std::int64_t at = std::int64_t{set} * kGrammarCacheWays + way;
  copy_mask(mask, p.cache.masks + at * p.mask_stride, p.mask_stride);
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
                     const GrammarRow& row, GrammarSearch& search, const std::uint32_t* mask) {
  __shared__ int way;
  const int set = __ldcg(&search.set);
  if (threadIdx.x == 0) {
    wait_for_count(p.arrivals->num_copied, static_cast<unsigned>(p.num_rows));
    way = atomicCAS(&p.cache.locks[set], 0, 1) == 0
              ? static_cast<int>(p.cache.turns[set] % kGrammarCacheWays)
              : -1;
    __threadfence();
  }
  __syncthreads();
  if (way < 0) return;
  if (find_way(p, grammar, row, set) < 0) {
    const std::int64_t at = std::int64_t{set} * kGrammarCacheWays + way;
    GrammarMaskEntry& entry = p.cache.entries[at];
    for (int i = threadIdx.x; i < num_place_words(row); i += kThreads) {
      entry.place[i] = place_word(row, i);
    }
    for (int depth = threadIdx.x; depth <= row.depth; depth += kThreads) {
      entry.counts[depth] = load_interval(search.counts[depth]);
    }
    copy_mask(p.cache.masks + at * p.mask_stride, mask, p.mask_stride);
    if (threadIdx.x == 0) {
      entry.grammar = grammar.id;
      entry.lengths = load_interval(search.lengths);
      ++p.cache.turns[set];
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(&p.cache.locks[set], 0);
}

// What a walker does for a row whose place was not in the cache: its part of the vocabulary.
__device__ void walk(const GrammarMasksParams& p, GrammarSearch& search, int member,
                     int num_members) {
  __shared__ __align__(16) unsigned char raw_probes[kWarps * sizeof(WholeProbe)];
  __shared__ bool is_last;
  const std::int64_t i = __ldcg(&search.index);
  const int row = p.rows[i];
  const GrammarTables grammar = p.grammars[p.row_states[row].grammar];
  const GrammarRow& place = share_row(load_row(p.grammar_rows[row]));
  std::uint32_t* const mask = p.masks + i * p.mask_stride;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  OwnProbe probe;
  probe.begin(place, search.counts);
  for (int word = member * kWarps + warp; word < p.mask_stride; word += num_members * kWarps) {
    const int token = word * 32 + lane;
    bool legal = false;
    probe.again();
    if (token < p.texts.vocab) {
      legal = token == p.texts.eos_id ? may_end(grammar, place)
                                      : take_token(grammar, p.texts, token, probe);
    }
    // With all lengths that were noted so far: a walk that ended early noted some that hold.
    for (unsigned left = __ballot_sync(kFullWarp, probe.overflowed); left != 0; left &= left - 1) {
      if (lane == __ffs(static_cast<int>(left)) - 1) {
        WholeProbe& again = reinterpret_cast<WholeProbe*>(raw_probes)[warp];
        again.watch = LengthWatch{};
        again.begin(place, search.counts);
        legal = take_token(grammar, p.texts, token, again);
        probe.watch.lengths.least = max(probe.watch.lengths.least, again.watch.lengths.least);
        probe.watch.lengths.most = min(probe.watch.lengths.most, again.watch.lengths.most);
      }
      __syncwarp();
    }
    const unsigned bits = __ballot_sync(kFullWarp, legal);
    if (lane == 0) mask[word] = bits;
  }
  note_lengths(probe.watch.lengths, search);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    is_last = atomicAdd(&search.num_arrived, 1u) + 1 == static_cast<unsigned>(num_members);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  keep(p, grammar, place, search, mask);
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

// Blocks: num_rows finders, then num_teams * num_members walkers.
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    grammar_masks_kernel(GrammarMasksParams p, int num_teams, int num_members) {
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
    for (int k = walker % num_teams; k < num_missing; k += num_teams) {
      walk(p, p.searches[k], walker / num_teams, num_members);
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
  const int num_members =
      std::min<int>(kMaxTeamBlocks, static_cast<int>(blocks_for(params.mask_stride, kWarps)));
  const int num_teams = std::min(kMaxTeams, params.num_rows);
  const auto num_blocks = static_cast<unsigned>(params.num_rows + num_teams * num_members);
  return launch("grammar_masks", stream, {.grid = dim3(num_blocks), .block = dim3(kThreads)},
                grammar_masks_kernel, params, num_teams, num_members);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
