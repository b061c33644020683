// One byte of a grammar's automaton: the same function for the host, the CPU kernels and the CUDA kernels, and for
// every kind of row:
//
//   GrammarRow     a row's own state
//   GrammarProbe   a trial: the row that it begins at stays as it is, and copies no frame that it does not change
//   the walk of a vocabulary's tree (constraint/legal_tokens.cpp), which takes bytes back again
//
// A row has state, depth and length, and
//   bool reach(at)              the frame at this depth may be used now; false: this row cannot hold it, and the walk ends
//   GrammarFrame& frame(at)     of a frame that was reached
//   bool open_frame(at, next)   a new one; false as for reach()
//   bool length_at_most(limit), bool length_at_least(limit)   false ends the walk. A trial may go on with a length for which this is
//                               so, although the row's is another one
//   bool count_at_most(at, count, limit)   `count`: that of the frame at this depth, and what else is to be reckoned
//   void begin_length()         length = 0
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/keep_loop.h"
#include "base/num_bits.h"
#include "grammar/grammar_tables.h"

namespace gapless {

// Of the names that a condition requires, how many an object has not.
GAPLESS_HOST_DEVICE inline int num_missing(const GrammarCondition& condition,
                                           const GrammarFrame& frame) {
  int missing = 0;
  GAPLESS_KEEP_LOOP
  for (int i = 0; i < kNameWords; ++i) {
    missing += num_bits(condition.required.words[i] & ~frame.seen.words[i]);
  }
  return missing;
}

namespace grammar_walk {

// Whether some alternative still has room for what is there and for what it requires. `frame`: the row's innermost.
template <typename Row>
GAPLESS_HOST_DEVICE inline bool has_room(const GrammarTables& g, const GrammarAction& action,
                                         Row& row, const GrammarFrame& frame, int extra) {
  GAPLESS_KEEP_LOOP
  for (int i = 0; i < action.num_conditions; ++i) {
    const GrammarCondition& condition = g.conditions[action.first_condition + i];
    if (condition.max < 0) return true;
    const int needed = frame.count + extra + num_missing(condition, frame);
    if (row.count_at_most(row.depth, needed, condition.max)) return true;
  }
  return false;
}

// Some of these names is not there yet; `among` nullptr: all names.
GAPLESS_HOST_DEVICE inline bool any_left(const NameSet& names, const GrammarFrame& frame,
                                         const NameSet* among) {
  std::uint32_t left = 0;
  GAPLESS_KEEP_LOOP
  for (int i = 0; i < kNameWords; ++i) {
    left |= names.words[i] & ~frame.seen.words[i] & (among == nullptr ? ~0u : among->words[i]);
  }
  return left != 0;
}

// Whether a member of these names, or another one, may still come: what is required must find room behind it.
template <typename Row>
GAPLESS_HOST_DEVICE inline bool may_come(const GrammarTables& g, const GrammarAction& action,
                                         Row& row, const GrammarFrame& frame) {
  const NameSet& names = g.name_sets[action.result];
  GAPLESS_KEEP_LOOP
  for (int i = 0; i < action.num_conditions; ++i) {
    const GrammarCondition& condition = g.conditions[action.first_condition + i];
    const int needed = frame.count + num_missing(condition, frame);
    const bool has_more =
        condition.max < 0 || row.count_at_most(row.depth, needed, condition.max - 1);
    if (has_more && action.table == 1) return true;
    // In the last places only what is required may come.
    if (!has_more && !row.count_at_most(row.depth, needed, condition.max)) continue;
    if (any_left(names, frame, has_more ? nullptr : &condition.required)) return true;
  }
  return false;
}

template <typename Row>
GAPLESS_HOST_DEVICE inline bool close(const GrammarTables& g, const GrammarAction& action,
                                      Row& row) {
  if (row.depth == 0 || !row.reach(row.depth) || !row.reach(row.depth - 1)) return false;
  const GrammarFrame& frame = row.frame(row.depth);
  const int count = frame.count + action.result;
  std::uint32_t roles = 0;
  GAPLESS_KEEP_LOOP
  for (int i = 0; i < action.num_conditions; ++i) {
    const GrammarCondition& condition = g.conditions[action.first_condition + i];
    const bool holds =
        num_missing(condition, frame) == 0 &&
        (condition.min <= 0 || !row.count_at_most(row.depth, count, condition.min - 1)) &&
        (condition.max < 0 || row.count_at_most(row.depth, count, condition.max));
    if (holds) roles |= 1u << condition.role;
  }
  if (roles == 0) return false;
  --row.depth;
  row.state = g.next_states[row.frame(row.depth).next + roles - 1];
  return true;
}

// The row is in the edge's state already. False: the edge may not be taken.
template <typename Row>
GAPLESS_HOST_DEVICE inline bool act(const GrammarTables& g, const GrammarAction& action, Row& row) {
  switch (action.op) {
    case GrammarOp::kNone:
      return true;
    case GrammarOp::kSpace:
    case GrammarOp::kChar:
      ++row.length;
      return action.max < 0 || row.length_at_most(action.max);
    case GrammarOp::kStringEnd:
      if (!row.length_at_least(action.min)) return false;
      break;
    default:
      break;
  }
  row.begin_length();
  if (action.op == GrammarOp::kStringBegin) return true;
  if (action.op == GrammarOp::kClose) return close(g, action, row);
  if (action.op == GrammarOp::kPush) {
    if (row.depth == kMaxGrammarDepth || !row.open_frame(row.depth + 1, action.table)) return false;
    ++row.depth;
    return true;
  }
  if (!row.reach(row.depth)) return false;
  GrammarFrame& frame = row.frame(row.depth);
  int extra = 0;  // of a member or item that is still to come
  switch (action.op) {
    case GrammarOp::kCall:
      frame.next = action.table;
      return true;
    case GrammarOp::kReturn:
    case GrammarOp::kRedo:
    case GrammarOp::kStringEnd:
      row.state = g.next_states[frame.next + action.result];
      return true;
    case GrammarOp::kName:
      return may_come(g, action, row, frame);
    case GrammarOp::kKey: {
      std::uint32_t& word = frame.seen.words[action.result / 32];
      const std::uint32_t bit = 1u << action.result % 32;
      if ((word & bit) != 0) return false;
      word |= bit;
      break;
    }
    case GrammarOp::kOtherKey:
      break;
    case GrammarOp::kComma:
      frame.next = action.table;
      extra = 1;
      break;
    default:
      return false;
  }
  ++frame.count;
  return has_room(g, action, row, frame, extra);
}

}  // namespace grammar_walk

// A byte of this class (GrammarTables::class_of). False: it is illegal here, and the row is undefined.
template <typename Row>
GAPLESS_HOST_DEVICE inline bool take_class(const GrammarTables& g, Row& row, int column) {
  // A number ends at most once; what follows it is no number.
  GAPLESS_KEEP_LOOP
  for (int turn = 0; turn < 2; ++turn) {
    const GrammarEdge edge = g.edges[static_cast<std::int64_t>(row.state) * g.num_classes + column];
    if (edge.state == kDeadGrammarState) return false;
    row.state = edge.state;
    if (edge.action == 0) return true;
    const GrammarAction& action = g.actions[edge.action];
    // A value may return to where nothing can go on.
    if (!grammar_walk::act(g, action, row) || row.state == kDeadGrammarState) return false;
    if (action.op != GrammarOp::kRedo) return true;
  }
  return false;
}

template <typename Row>
GAPLESS_HOST_DEVICE inline bool take_byte(const GrammarTables& g, Row& row, std::uint8_t byte) {
  return take_class(g, row, g.class_of[byte]);
}

GAPLESS_HOST_DEVICE inline void begin_row(const GrammarTables& g, GrammarRow& row) {
  row.state = g.start;
  row.depth = 0;
  row.length = 0;
  row.frames[0] = GrammarFrame{.next = g.root_table};
}

GAPLESS_HOST_DEVICE inline bool may_end(const GrammarTables& g, const GrammarRow& row) {
  return row.depth == 0 && g.may_end[row.state] != 0;
}

// The numbers at a walk's beginning, lengths (GrammarRow::length) or counts of a frame, for which something holds, all else being
// equal.
struct WalkInterval {
  std::int32_t least = 0;
  std::int32_t most = INT32_MAX;

  GAPLESS_HOST_DEVICE bool contains(std::int32_t number) const {
    return least <= number && number <= most;
  }
  GAPLESS_HOST_DEVICE bool is_bounded() const { return least > 0 || most < INT32_MAX; }
  GAPLESS_HOST_DEVICE void narrow(const WalkInterval& other) {
    if (other.least > least) least = other.least;
    if (other.most < most) most = other.most;
  }
  // To those numbers that are in `other` as `number` is, or outside on the same side.
  GAPLESS_HOST_DEVICE void narrow_to_side(const WalkInterval& other, std::int32_t number) {
    if (number < other.least) {
      narrow({0, other.least - 1});
    } else if (number > other.most) {
      narrow({other.most + 1, INT32_MAX});
    } else {
      narrow(other);
    }
  }

  // What was at_most `bound`, or was not, is so for no more than these.
  GAPLESS_HOST_DEVICE void note(bool was_at_most, std::int32_t bound) {
    if (was_at_most) {
      if (bound < most) most = bound;
    } else {
      if (bound + 1 > least) least = bound + 1;
    }
  }
  // Several threads of a device note what is in its memory. A number that was read long ago is no tighter than what is there.
  GAPLESS_HOST_DEVICE void note_with_others(bool was_at_most, std::int32_t bound) {
#ifdef __CUDA_ARCH__
    if (was_at_most) {
      if (bound < most) atomicMin(&most, bound);
    } else {
      if (bound + 1 > least) atomicMax(&least, bound + 1);
    }
#else
    note(was_at_most, bound);
#endif
  }
};

// The length of a trial, for all lengths at its beginning at once: where it ends well, `lengths` says for which of them the bytes
// are legal, and the row's own need not be among them.
struct TrialLength {
  std::int32_t at_begin = 0;  // the row's own
  std::int32_t length = 0;
  bool length_is_original = true;  // no other length has begun since
  WalkInterval lengths;

  GAPLESS_HOST_DEVICE void begin_trial(std::int32_t row_length) {
    at_begin = length = row_length;
    length_is_original = true;
    lengths = WalkInterval{};
  }
  GAPLESS_HOST_DEVICE bool length_at_most(std::int32_t limit) {
    if (!length_is_original) return length <= limit;
    lengths.narrow({0, limit - (length - at_begin)});
    return lengths.least <= lengths.most;
  }
  GAPLESS_HOST_DEVICE bool length_at_least(std::int32_t limit) {
    if (!length_is_original) return length >= limit;
    lengths.narrow({limit - (length - at_begin), INT32_MAX});
    return lengths.least <= lengths.most;
  }
  GAPLESS_HOST_DEVICE void begin_length() {
    length = 0;
    length_is_original = false;
  }
};

// A row on which bytes are tried. Keeps the frames that it uses, of as many depths as follow each other: a token that closes or
// opens more of them than that ends the walk (overflowed), and kMaxGrammarDepth + 1 are always enough.
template <int kNumFrames>
struct GrammarProbe : TrialLength {
  static_assert(kNumFrames <= 64);  // bits of `opened`
  const GrammarRow* from = nullptr;
  std::uint16_t state = 0, depth = 0;
  bool overflowed = false;
  // By depth: for which counts at the beginning the walks' comparisons would come out the same. Outlives the probe.
  WalkInterval* counts = nullptr;
  std::int8_t depth_of[kNumFrames];  // -1: not in use
  std::uint64_t opened = 0;          // bit i: frames[i] was not there at the beginning
  GrammarFrame frames[kNumFrames];

  // counts_of: [kMaxGrammarDepth + 1], intervals of all numbers at first.
  GAPLESS_HOST_DEVICE void begin(const GrammarRow& row, WalkInterval* counts_of) {
    from = &row;
    counts = counts_of;
    again();
  }
  // Back to the beginning; what was noted of counts stays.
  GAPLESS_HOST_DEVICE void again() {
    state = from->state;
    depth = from->depth;
    begin_trial(from->length);
    overflowed = false;
    opened = 0;
    for (int i = 0; i < kNumFrames; ++i) depth_of[i] = -1;
  }

  GAPLESS_HOST_DEVICE bool reach(int at) {
    std::int8_t& kept = depth_of[at % kNumFrames];
    if (kept == at) return true;
    if (!take_place(kept, at)) return false;
    frames[at % kNumFrames] = from->frames[at];
    opened &= ~(std::uint64_t{1} << at % kNumFrames);
    return true;
  }
  GAPLESS_HOST_DEVICE GrammarFrame& frame(int at) { return frames[at % kNumFrames]; }
  GAPLESS_HOST_DEVICE bool open_frame(int at, std::uint16_t next) {
    std::int8_t& kept = depth_of[at % kNumFrames];
    if (kept != at && !take_place(kept, at)) return false;
    frames[at % kNumFrames] = GrammarFrame{.next = next};
    opened |= std::uint64_t{1} << at % kNumFrames;
    return true;
  }
  GAPLESS_HOST_DEVICE bool count_at_most(int at, std::int32_t count, std::int32_t limit) {
    const bool result = count <= limit;
    if ((opened >> at % kNumFrames & 1) == 0) {
      counts[at].note_with_others(result, limit - (count - from->frames[at].count));
    }
    return result;
  }

 private:
  GAPLESS_HOST_DEVICE bool take_place(std::int8_t& kept, int at) {
    if (kept >= 0) {
      overflowed = true;
      return false;
    }
    kept = static_cast<std::int8_t>(at);
    return true;
  }
};

}  // namespace gapless
