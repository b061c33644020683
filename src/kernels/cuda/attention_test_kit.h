// Decode steps for tests of attention_rows.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_rows.h"

namespace gapless {

struct TestRow {
  int num_cached;      // tokens; -1: the row is done
  int picture = -1;    // rows about one picture begin with the same pages; -1: one of its own
  int num_common = 0;  // so many pages, or as many as the row and the first one have filled
};

// A step, and what its plan would say.
struct TestStep {
  std::vector<AttentionSequence> sequences;
  std::vector<SharedPrefix> prefixes;

  explicit TestStep(const std::vector<TestRow>& rows) {
    std::map<std::pair<int, int>, std::vector<int>> pictures;  // of a slice
    for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
      const TestRow& row = rows[static_cast<std::size_t>(i)];
      const bool lives = row.num_cached >= 0;
      sequences.push_back({.row = 100 + i,
                           .first_token = i,
                           .num_tokens = lives ? 1 : 0,
                           .num_cached = lives ? row.num_cached : 0});
      if (lives && row.picture >= 0) pictures[{sharing_slice_begin(i), row.picture}].push_back(i);
    }
    prefixes.resize(rows.size());
    for (const auto& [picture, members] : pictures) {
      for (std::size_t begin = 0; begin < members.size(); begin += kMaxSharingRows) {
        const std::size_t end = std::min(begin + kMaxSharingRows, members.size());
        if (end - begin < 2) continue;
        std::uint64_t bits = 0;
        for (std::size_t i = begin; i < end; ++i)
          bits |= std::uint64_t{1} << members[i] % kSharingSlice;
        const auto filled = [&](std::size_t member) {
          return rows[static_cast<std::size_t>(members[member])].num_cached / kPageTokens;
        };
        for (std::size_t i = begin; i < end; ++i) {
          const auto row = static_cast<std::size_t>(members[i]);
          prefixes[row] = {
              .rows = bits,
              .num_pages = std::min(
                  {filled(i), filled(begin), i == begin ? filled(begin) : rows[row].num_common})};
        }
      }
    }
  }

  AttentionStep of(int num_groups) const {
    return {.sequences = sequences.data(),
            .prefixes = prefixes.data(),
            .num_rows = static_cast<int>(sequences.size()),
            .num_groups = num_groups};
  }
  // Where units are merged, and nothing is shared.
  AttentionStep merging(int num_groups) const {
    AttentionStep step = of(num_groups);
    step.prefixes = nullptr, step.merges_units = true;
    return step;
  }

  // As a block has them.
  template <int kPages>
  AttentionRows rows_of(int num_groups, int block, int num_blocks) const {
    AttentionRows rows;
    rows.load<kPages>(of(num_groups), block, num_blocks, OneLane());
    return rows;
  }
};

}  // namespace gapless
