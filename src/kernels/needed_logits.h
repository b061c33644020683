// Which logits a step's rows read, known from their states before the forward begins: on the device, so the host need not know.
//
// A row in a closed state of its automaton reads the logits of the tokens that the state lists, and of a single token not even
// that: it comes whatever its logit is. A logprob is a share of all tokens, though, so this holds only for rows whose logprob nobody
// reads (kRowSkipsLogprob). Moondream's objects are such rows: another coordinate or the end, then a coordinate, then a size.
//
// The same on the CPU and on a GPU. (The oracle in reference/ has its own.)
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/adjusted_logit.h"
#include "step/automaton_walk.h"
#include "step/row_state.h"

namespace gapless {

// A row's candidates, where they are few and known ahead.
struct ShortList {
  bool exists = false;  // false: the row reads every logit
  int num_tokens = 0;   // each once; 0: nothing may be sampled
  std::int32_t tokens[kMaxAutomatonEdges] = {};

  // Where there is no choice no logit is read.
  GAPLESS_HOST_DEVICE bool reads_logits() const { return num_tokens > 1; }

  GAPLESS_HOST_DEVICE void add(std::int32_t token) {
    for (int i = 0; i < num_tokens; ++i) {
      if (tokens[i] == token) return;
    }
    tokens[num_tokens++] = token;
  }
};

// Of a row that is not done.
GAPLESS_HOST_DEVICE inline ShortList short_list(const AutomatonState* automata, const RowState& row,
                                                int vocab) {
  ShortList list;
  const bool tells_logprobs =
      (row.flags & kRowSkipsLogprob) == 0 || row.sampling.num_top_logprobs > 0;
  const AutomatonState* const state = automaton_state(automata, row);
  if (tells_logprobs || state == nullptr) return list;
  const ListedTokens listed = listed_tokens(*state, row, nullptr);
  if (!listed.only || listed.classes != 0) return list;
  list.exists = true;
  for (int i = 0; i < listed.num_tokens; ++i) {
    const std::int32_t token = listed.tokens[i];
    if (token >= 0 && token < vocab && !is_held_back(row, token)) list.add(token);
  }
  return list;
}

// What the rows of one step read together.
struct StepLogits {
  static constexpr int kMaxTokens = 8;

  std::int32_t all = 0;  // not 0: of every token
  // Otherwise of these, in no order; -1: none.
  std::int32_t tokens[kMaxTokens] = {-1, -1, -1, -1, -1, -1, -1, -1};

  // More tokens than there is room for are all.
  GAPLESS_HOST_DEVICE void add(std::int32_t token) {
    for (std::int32_t& place : tokens) {
      if (place == token) return;
      if (place >= 0) continue;
      place = token;
      return;
    }
    all = 1;
  }
};

// Of the vocabulary.
struct ColumnRange {
  int begin, end;
};

// From the first of these tokens in `range` to behind the last; empty where it holds none.
GAPLESS_HOST_DEVICE inline ColumnRange columns_with(const std::int32_t* tokens, int num_tokens,
                                                    ColumnRange range) {
  ColumnRange part{range.end, range.begin};
  for (int i = 0; i < num_tokens; ++i) {
    if (tokens[i] < range.begin || tokens[i] >= range.end) continue;
    part.begin = tokens[i] < part.begin ? tokens[i] : part.begin;
    part.end = tokens[i] + 1 > part.end ? tokens[i] + 1 : part.end;
  }
  return part.begin < part.end ? part : ColumnRange{range.begin, range.begin};
}

// The part of `range` that a row with a short list reads, and that a step does.
GAPLESS_HOST_DEVICE inline ColumnRange needed_columns(const ShortList& list, ColumnRange range) {
  return list.exists ? columns_with(list.tokens, list.num_tokens, range) : range;
}
GAPLESS_HOST_DEVICE inline ColumnRange needed_columns(const StepLogits& needed, ColumnRange range) {
  return needed.all != 0 ? range : columns_with(needed.tokens, StepLogits::kMaxTokens, range);
}
// Of a range of tiles of so many columns.
GAPLESS_HOST_DEVICE inline ColumnRange needed_tiles(const StepLogits& needed, ColumnRange tiles,
                                                    int tile_columns) {
  const ColumnRange columns =
      needed_columns(needed, {tiles.begin * tile_columns, tiles.end * tile_columns});
  return {columns.begin / tile_columns, (columns.end + tile_columns - 1) / tile_columns};
}

}  // namespace gapless
