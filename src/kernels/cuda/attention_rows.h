// Which block attends to what in a decode step that is one launch (device/decoder_kernel.cuh).
//
// unit = some pages of one key head, or of two that lie side by side in a page: a group of heads. One warp attends to it.
// Units start at multiples of their size of the sequence. A unit belongs to one row, or to a set of rows that begin with the same
// pages (kernels/shared_prefix.h) if it lies in these: then it is read once, for all of them. So a row's units are the same whoever
// else is in the step, and so is what is computed for the row in each.
//
// run = the units of one row, or of one set, group by group, in the order of the sequence. Each block takes an equal share of the
// sets' units, and then an equal share of the rows': a set's cost a warp more time.
//
// part = what a block leaves of a row and group for those who combine it: a unit's, or of grouped queries, where rows are long, that of
// several units that follow each other, so that there is less to write and to read. A part begins at a multiple of its size, and lies
// in one block. How many units it has depends on the row's length alone, so a row's bits do not depend on the others'.
//
// Host and device, so that it is tested without a GPU.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/limits.h"
#include "kernels/cuda/decoder_work.h"
#include "kernels/shared_prefix.h"
#include "step/row_state.h"

namespace gapless {

// Run i is of the set whose first row is i, run kMaxLaunchRows + i of row i alone.
inline constexpr int kMaxRuns = 2 * kMaxLaunchRows;

inline constexpr int kMaxUnitsOfPart = 4;
// Of a row with so many units in each group.
GAPLESS_HOST_DEVICE constexpr int units_of_part(int units) {
  return units <= 16 ? 1 : units <= 32 ? 2 : kMaxUnitsOfPart;
}

// What a launch says of them.
struct AttentionStep {
  const AttentionSequence* sequences;  // [num_rows]
  const SharedPrefix* prefixes;        // [num_rows]; nullptr: no row shares anything
  int num_rows;
  int num_groups;             // of heads
  bool merges_units = false;  // into parts; then no row shares anything
};

// Of all rows, in shared memory.
struct AttentionRows {
  int num_keys[kMaxLaunchRows];  // the new one included; 0: nothing to do
  int seat[kMaxLaunchRows];      // row of the page table
  int first_unit[kMaxRuns + 1];  // of all runs in order; behind the last row's there are none
  std::uint16_t
      shared_units[kMaxLaunchRows];  // of a group, at the row's beginning: its set attends to these
  std::uint8_t members[kMaxLaunchRows]
                      [kMaxSharingRows];     // of the set whose first row it is, in order
  std::uint8_t num_members[kMaxLaunchRows];  // 0: it is no set's first row
  TileRange own_shared,
      own;  // this block's units of sets, of rows; computed once: to divide takes long

  // How many units this block has, and which the i-th is. Those of sets come first.
  GAPLESS_HOST_DEVICE int num_units() const { return own_shared.size() + own.size(); }
  GAPLESS_HOST_DEVICE int unit_at(int i) const {
    const int num_shared = own_shared.size();
    return i < num_shared ? own_shared.begin + i : own.begin + (i - num_shared);
  }

  // All of a row and group.
  template <int kPages>
  GAPLESS_HOST_DEVICE int units(int row) const {
    constexpr int kKeys = kPages * kPageTokens;
    return (num_keys[row] + kKeys - 1) / kKeys;
  }

  // The same of parts, where units are merged.
  template <int kPages>
  GAPLESS_HOST_DEVICE int parts(int row) const {
    const int all = units<kPages>(row), merged = units_of_part(all);
    return (all + merged - 1) / merged;
  }

  // By all lanes of a warp together, or by one thread (OneLane). Only full units are shared: to a page of a unit that is not,
  // its row may add a key.
  template <int kPages, typename Lanes>
  GAPLESS_HOST_DEVICE void load(const AttentionStep& step, int block, int num_blocks,
                                const Lanes& lanes) {
    for (int row = lanes.index(); row < kMaxLaunchRows; row += lanes.count()) {
      num_members[row] = 0;
      if (row >= step.num_rows) continue;
      const AttentionSequence sequence = step.sequences[row];
      num_keys[row] = sequence.num_tokens == 0 ? 0 : sequence.num_cached + 1;
      seat[row] = sequence.row;
      shared_units[row] = 0;
      if (step.prefixes == nullptr) continue;
      const SharedPrefix prefix = step.prefixes[row];
      if (prefix.rows == 0) continue;
      shared_units[row] = static_cast<std::uint16_t>(prefix.num_pages / kPages);
      const int first = sharing_slice_begin(row) + prefix.first();
      members[first][prefix.rank_of(row)] = static_cast<std::uint8_t>(row);
      if (first == row) num_members[row] = static_cast<std::uint8_t>(prefix.size());
    }
    lanes.sync();
    for (int first = lanes.index(); first < kMaxLaunchRows; first += lanes.count())
      share_least(first);
    lanes.sync();
    // Where each run's units begin.
    int before = 0;
    for (int base = 0; base < kMaxLaunchRows; base += lanes.count()) {
      const int row = base + lanes.index();
      const int units = num_members[row] == 0 ? 0 : shared_units[row] * step.num_groups;
      first_unit[row] = before + lanes.sum_before(units);
      before += lanes.sum(units);
    }
    const int of_sets = before;
    for (int base = 0; base < step.num_rows; base += lanes.count()) {
      const int row = base + lanes.index();
      const bool exists = row < step.num_rows;
      const int left = exists ? units<kPages>(row) - shared_units[row] : 0;
      const int first = before + lanes.sum_before(left * step.num_groups);
      if (exists) first_unit[kMaxLaunchRows + row] = first;
      before += lanes.sum(left * step.num_groups);
    }
    // Who has one unit more has it of the sets' from one end of the grid, of the rows' from the other.
    const TileRange share = equal_share(before - of_sets, block, num_blocks);
    TileRange of_rows = {of_sets + share.begin, of_sets + share.end};
    if (lanes.index() == 0) {
      first_unit[kMaxLaunchRows + step.num_rows] = before;
      own_shared = equal_share(of_sets, num_blocks - 1 - block, num_blocks);
    }
    lanes.sync();
    if (step.merges_units) {
      of_rows.begin -= units_before_in_part<kPages>(of_rows.begin, step.num_rows, lanes);
      of_rows.end -= units_before_in_part<kPages>(of_rows.end, step.num_rows, lanes);
    }
    if (lanes.index() == 0) own = of_rows;
    lanes.sync();
  }

 private:
  // How many units of its part come before a unit of a row.
  template <int kPages, typename Lanes>
  GAPLESS_HOST_DEVICE int units_before_in_part(int unit, int num_rows, const Lanes& lanes) const {
    int before = 0;
    for (int row = lanes.index(); row < num_rows; row += lanes.count()) {
      const int first = first_unit[kMaxLaunchRows + row];
      if (unit < first || unit >= first_unit[kMaxLaunchRows + row + 1]) continue;
      const int all = units<kPages>(row);
      before = (unit - first) % all % units_of_part(all);
    }
    return lanes.sum(before);
  }

  // What all rows of a set have in common.
  GAPLESS_HOST_DEVICE void share_least(int first) {
    const int size = num_members[first];
    if (size == 0) return;
    std::uint16_t least = shared_units[first];
    for (int i = 1; i < size; ++i) {
      const std::uint16_t units = shared_units[members[first][i]];
      least = units < least ? units : least;
    }
    for (int i = 0; i < size; ++i) shared_units[members[first][i]] = least;
  }
};

// For AttentionRows::load on the host.
struct OneLane {
  static int index() { return 0; }
  static int count() { return 1; }
  static void sync() {}
  static int sum_before(int) { return 0; }
  static int sum(int own) { return own; }
};

// One unit. Found in rising order: `run` is where the search begins.
template <int kPages>
struct AttentionUnit {
  static constexpr int kKeys = kPages * kPageTokens;
  // heads: which group. num_keys: of the row, from first_key on.
  int run = 0, heads = 0, first_key = 0, num_keys = 0;

  GAPLESS_HOST_DEVICE int row() const { return run % kMaxLaunchRows; }  // of a set's the first one

  GAPLESS_HOST_DEVICE void find(const AttentionRows& rows, int index) {
    if (rows.first_unit[kMaxLaunchRows] <= index) return find_own(rows, index);
    while (rows.first_unit[run + 1] <= index) ++run;
    place(rows, index, rows.shared_units[row()], 0);
  }
  // One of those of rows, which come behind those of sets.
  GAPLESS_HOST_DEVICE void find_own(const AttentionRows& rows, int index) {
    if (run < kMaxLaunchRows) run = kMaxLaunchRows;
    while (rows.first_unit[run + 1] <= index) ++run;
    const int shared = rows.shared_units[row()];
    place(rows, index, rows.units<kPages>(row()) - shared, shared);
  }
  GAPLESS_HOST_DEVICE int num_pages() const {
    const int pages = (num_keys + kPageTokens - 1) / kPageTokens;
    return pages < kPages ? pages : kPages;
  }
  GAPLESS_HOST_DEVICE bool has_newest() const { return num_keys <= kKeys; }

 private:
  // The run has so many units of each group, behind so many of its rows.
  GAPLESS_HOST_DEVICE void place(const AttentionRows& rows, int index, int units, int before) {
    const int rest = index - rows.first_unit[run];
    heads = rest / units;
    first_key = (rest % units + before) * kKeys;
    num_keys = rows.num_keys[row()] - first_key;
  }
};

}  // namespace gapless
