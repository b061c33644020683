// The legal tokens of rows with a grammar; GrammarMasksParams in kernels.h says which. One launch of two sorts of blocks:
//
//   finders   the first blocks, one for each row: takes the row's last token and looks its place up in the cache
//   walkers   the others, in a few teams, each of which takes every few-th row whose place was not there: a warp for 32 tokens, a
//             thread for each of them; the last walker of a row puts what was found into the cache
//
// Walkers wait until all finders are through, and only they change the cache, so no row meets an entry that is half made. A
// finder waits for nobody and has a lower number, so it starts no later than who waits for it. With nothing to walk a walker ends
// as soon as the finders have: a second kernel would cost another launch, and a grid of walkers for each row the starting of
// thousands of blocks.
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

// The row of a block, in shared memory. (Such memory has no constructors.)
__device__ GrammarRow& share_row(const GrammarRow& row) {
  __shared__ std::uint32_t words[kRowWords];
  __syncthreads();
  const auto* const from = reinterpret_cast<const std::uint32_t*>(&row);
  for (int i = threadIdx.x; i < kRowWords; i += kThreads) words[i] = __ldcg(&from[i]);
  __syncthreads();
  return *reinterpret_cast<GrammarRow*>(words);
}

// The block's threads, with its row in shared memory. The way along a token is one access of memory behind the other, so all
// threads look up the classes of its bytes, and what one thread then changes is near to it.
__device__ void move_row(const GrammarMasksParams& p, const RowState& state,
                         const GrammarTables& grammar, GrammarRow& place) {
  __shared__ std::uint8_t classes[kThreads];
  const int token = state.input.id;
  const bool begins = state.num_generated == 0;
  const bool has_text = !begins && 0 <= token && token < p.texts.vocab;
  const int begin = has_text ? p.texts.first[token] : 0;
  const int end = has_text ? p.texts.first[token + 1] : 0;
  bool legal = begin < end && place.state != kDeadGrammarState;
  for (int first = begin; first < end; first += kThreads) {
    const int num_bytes = min(kThreads, end - first);
    const int i = static_cast<int>(threadIdx.x);
    if (i < num_bytes) classes[i] = grammar.class_of[p.texts.bytes[first + i]];
    __syncthreads();
    if (i == 0) {
      for (int at = 0; legal && at < num_bytes; ++at) {
        legal = take_class(grammar, place, classes[at]);
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

// Whether the row has a set of tokens to be found.
__device__ bool has_grammar(const GrammarMasksParams& p, int row) {
  return row >= 0 && p.row_states[row].done == 0 && p.row_states[row].grammar != kNoGrammar;
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
  bool same = __ldcg(&entry.grammar) == grammar.id &&
              LengthInterval{__ldcg(&entry.lengths.least), __ldcg(&entry.lengths.most)}.contains(
                  row.length);
  for (int i = threadIdx.x % kWayThreads; i < num_place_words(row); i += kWayThreads) {
    same = same && __ldcg(&entry.place[i]) == place_word(grammar, row, i);
  }
  if (!same) differs[way] = 1;
  __syncthreads();
  int found = -1;
  for (int w = kGrammarCacheWays - 1; w >= 0; --w) {
    if (differs[w] == 0) found = w;
  }
  return found;
}

__device__ void copy_mask(std::uint32_t* to, const std::uint32_t* from, int num_words) {
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
    mine += hash_of_word(place_word(grammar, row, i), i);
  }
  mine = __reduce_add_sync(kFullWarp, mine);
  if (threadIdx.x % kWarp == 0) atomicAdd(&sum, mine);
  __syncthreads();
  return static_cast<int>(sum % static_cast<unsigned>(p.cache.num_sets));
}

// What a finder does for the i-th row.
__device__ void find(const GrammarMasksParams& p, std::int64_t i) {
  const int row = p.rows[i];
  GrammarSearch& search = p.searches[i];
  if (!has_grammar(p, row)) {
    if (threadIdx.x == 0) search.is_missing = 0;
    return;
  }
  const RowState& state = p.row_states[row];
  const GrammarTables grammar = p.grammars[state.grammar];
  GrammarRow& place = share_row(p.grammar_rows[row]);
  move_row(p, state, grammar, place);
  copy_row(reinterpret_cast<std::uint32_t*>(&p.grammar_rows[row]),
           reinterpret_cast<const std::uint32_t*>(&place));
  std::uint32_t* const mask = p.masks + i * p.mask_stride;
  if (place.state == kDeadGrammarState) {
    for (int w = threadIdx.x; w < p.mask_stride; w += kThreads) mask[w] = 0;
    if (threadIdx.x == 0) search.is_missing = 0;
    return;
  }
  const int set = set_of(p, grammar, place);
  const int way = find_way(p, grammar, place, set);
  if (way >= 0) {
    const std::int64_t at = std::int64_t{set} * kGrammarCacheWays + way;
    copy_mask(mask, p.cache.masks + at * p.mask_stride, p.mask_stride);
    if (threadIdx.x == 0) search.is_missing = 0;
    return;
  }
  if (threadIdx.x == 0) search = GrammarSearch{.is_missing = 1, .set = set};
}

// What a warp's threads noted while they tried their tokens.
__device__ void note_lengths(const LengthInterval& mine, GrammarSearch& search) {
  const int least = __reduce_max_sync(kFullWarp, mine.least);
  const int most = __reduce_min_sync(kFullWarp, mine.most);
  if (threadIdx.x % kWarp != 0) return;
  if (least > 0) atomicMax(&search.lengths.least, least);
  if (most < INT32_MAX) atomicMin(&search.lengths.most, most);
}

// The last block of a row: what was found goes into the cache, unless somebody else changes its set just now, or was faster.
__device__ void keep(const GrammarMasksParams& p, const GrammarTables& grammar,
                     const GrammarRow& row, GrammarSearch& search, const std::uint32_t* mask) {
  __shared__ int way;
  const int set = __ldcg(&search.set);
  if (threadIdx.x == 0) {
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
      entry.place[i] = place_word(grammar, row, i);
    }
    copy_mask(p.cache.masks + at * p.mask_stride, mask, p.mask_stride);
    if (threadIdx.x == 0) {
      entry.grammar = grammar.id;
      entry.lengths.least = __ldcg(&search.lengths.least);
      entry.lengths.most = __ldcg(&search.lengths.most);
      ++p.cache.turns[set];
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(&p.cache.locks[set], 0);
}

// What a walker does for the i-th row, whose place was not in the cache: its part of the vocabulary.
__device__ void walk(const GrammarMasksParams& p, std::int64_t i, int member, int num_members) {
  __shared__ __align__(16) unsigned char raw_probes[kWarps * sizeof(WholeProbe)];
  __shared__ bool is_last;
  GrammarSearch& search = p.searches[i];
  const int row = p.rows[i];
  const GrammarTables grammar = p.grammars[p.row_states[row].grammar];
  const GrammarRow& place = share_row(p.grammar_rows[row]);
  std::uint32_t* const mask = p.masks + i * p.mask_stride;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  OwnProbe probe;
  probe.begin(place);
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
        again.begin(place);
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

// Blocks: num_rows finders, then num_teams * num_members walkers.
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    grammar_masks_kernel(GrammarMasksParams p, int num_teams, int num_members) {
  let_successor_start();
  wait_for_predecessor();
  const int walker = static_cast<int>(blockIdx.x) - p.num_rows;
  if (walker < 0) {
    find(p, blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) signal(p.arrivals->num_found);
  } else {
    if (threadIdx.x == 0) {
      wait_for_count(p.arrivals->num_found, static_cast<unsigned>(p.num_rows));
    }
    __syncthreads();
    for (int i = walker % num_teams; i < p.num_rows; i += num_teams) {
      if (__ldcg(&p.searches[i].is_missing) != 0) walk(p, i, walker / num_teams, num_members);
    }
  }
  // The last block of all: every walker has seen the count.
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&p.arrivals->num_ended, 1u) + 1 != gridDim.x) return;
  p.arrivals->num_found = 0;
  p.arrivals->num_ended = 0;
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
