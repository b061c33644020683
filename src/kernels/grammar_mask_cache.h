// Sets of legal tokens that were found, on the device: by grammar and place, for an interval of lengths and, of each open frame, one
// of counts: of a list that takes forty items, the third and the thirtieth have the same. Where the length decides about few tokens
// an entry is for all lengths, and lists those tokens: up to 25 blanks may stand in a row, so a token of four is legal behind at
// most 21. A place names the set of entries that it may be in; a new one takes the place of the set's oldest. Nothing is ever
// allocated, and a full cache only forgets.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "grammar/grammar_walk.h"

namespace gapless {

// A row's place but for its length and counts, as words.
inline constexpr int kFrameWords = 1 + kNameWords;
inline constexpr int kMaxPlaceWords = 1 + kFrameWords * (kMaxGrammarDepth + 1);

GAPLESS_HOST_DEVICE inline int num_place_words(const GrammarRow& row) {
  return 1 + kFrameWords * (row.depth + 1);
}

GAPLESS_HOST_DEVICE inline std::uint32_t place_word(const GrammarRow& row, int i) {
  if (i == 0) return row.state | static_cast<std::uint32_t>(row.depth) << 16;
  const GrammarFrame& frame = row.frames[(i - 1) / kFrameWords];
  const int part = (i - 1) % kFrameWords;
  return part == 0 ? frame.next : frame.seen.words[part - 1];
}

// What a word adds to the hash of its place; sums do not depend on their order.
GAPLESS_HOST_DEVICE inline std::uint32_t hash_of_word(std::uint32_t word, int i) {
  std::uint32_t h = word * 0x9E3779B1u + static_cast<std::uint32_t>(i) * 0x85EBCA77u;
  h = (h ^ h >> 15) * 0xC2B2AE3Du;
  return h ^ h >> 13;
}

// A token that is legal at some lengths of the row and illegal at others.
struct BoundedToken {
  std::int32_t token = 0;
  WalkInterval lengths;  // at which it is legal
};

// Of one entry. In random answers to one schema a place in the blanks between two tokens of JSON had up to 470, with Qwen's
// vocabulary.
inline constexpr int kMaxBoundedTokens = 512;

struct GrammarMaskEntry {
  std::int32_t grammar = 0;      // GrammarTables::id; 0: the entry is empty
  std::int32_t num_bounded = 0;  // tokens whose bits are not the mask's but what their lengths say
  WalkInterval lengths;
  WalkInterval counts[kMaxGrammarDepth + 1];  // by depth
  std::uint32_t place[kMaxPlaceWords] = {};
};

inline constexpr int kGrammarCacheWays = 32;

// All of it comes up as zeros.
struct GrammarMaskCache {
  GrammarMaskEntry* entries = nullptr;  // [num_sets, kGrammarCacheWays]
  std::uint32_t* masks = nullptr;       // [num_sets, kGrammarCacheWays, mask_stride of the op]
  BoundedToken* bounded = nullptr;      // [num_sets, kGrammarCacheWays, kMaxBoundedTokens]
  std::uint32_t* turns = nullptr;       // [num_sets]: entries that were made
  std::int32_t* locks = nullptr;        // [num_sets]: somebody makes one
  int num_sets = 0;
};

// One row of a launch whose place was not in the cache, while its tokens are looked for.
struct GrammarSearch {
  std::int32_t index = 0;    // of the row in the launch
  std::int32_t row = 0;      // in the row states
  std::int32_t grammar = 0;  // RowState::grammar
  std::int32_t set = 0;      // where it goes
  WalkInterval lengths;      // with the same tokens as the row's length
  WalkInterval counts[kMaxGrammarDepth + 1];
  std::uint32_t num_bounded =
      0;  // tokens about which the length decides, be they listed or too many
  std::uint32_t num_arrived = 0;
};

// Of one launch. Zeros between launches.
struct GrammarArrivals {
  // In one word, so that who waits for the finders learns with the last of them how many rows there are to walk: finders that have
  // looked, and kMissingRow for each row whose place was not in the cache.
  std::uint32_t found = 0;
  std::uint32_t num_copied = 0;  // finders that are through with the cache
  std::uint32_t num_ended = 0;   // blocks that are through
};
inline constexpr std::uint32_t kMissingRow = 1u << 16;

}  // namespace gapless
