#include "kernels/cuda/attention_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_test_kit.h"

namespace gapless {
namespace {

constexpr int kGroups = 3;  // of heads

std::vector<TestRow> rows_about(int picture, int count, int num_cached, int num_common) {
  return std::vector<TestRow>(static_cast<std::size_t>(count), {num_cached, picture, num_common});
}

// Rows of many lengths about many pictures, done rows among them.
std::vector<TestRow> any_rows(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&random](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  std::vector<TestRow> rows;
  const int count = 1 + below(kMaxLaunchRows), num_pictures = 1 + below(6);
  for (int i = 0; i < count; ++i) {
    const int num_cached = below(8) == 0 ? -1 : below(900);
    rows.push_back({num_cached, below(4) == 0 ? -1 : below(num_pictures), below(60)});
  }
  return rows;
}

std::vector<std::vector<TestRow>> steps() {
  std::vector<std::vector<TestRow>> steps = {
      {{0}},
      {{-1}},
      {{850}, {31}, {32}, {-1}, {33}},
      // The last common page, and the last page of all, end where a unit ends, or do not.
      {{32, 0, 2}, {32, 0, 2}},
      {{31, 0, 1}, {64, 0, 2}},
      {{64, 0, 4}, {63, 0, 3}, {128, 0, 8}},
  };
  for (const int count : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 63, 64, 65, 100, 128}) {
    steps.push_back(rows_about(0, count, 850, 45));
  }
  for (unsigned seed = 0; seed < 40; ++seed) steps.push_back(any_rows(seed));
  return steps;
}

// What all blocks attend to, as (row, group, first key): a set's units count for each of its rows.
using Keys = std::tuple<int, int, int>;

template <int kPages>
void expect_each_key_once(const TestStep& step, int num_blocks) {
  constexpr int kKeys = kPages * kPageTokens;
  std::multiset<Keys> seen;
  for (int block = 0; block < num_blocks; ++block) {
    const AttentionRows rows = step.rows_of<kPages>(kGroups, block, num_blocks);
    AttentionUnit<kPages> unit, own;
    for (int i = 0; i < rows.num_units(); ++i) {
      unit.find(rows, rows.unit_at(i));
      const bool is_shared = unit.run < kMaxLaunchRows;
      if (!is_shared) {
        own.find_own(rows, rows.own.begin + i - rows.own_shared.size());
        EXPECT_EQ(std::tuple(own.run, own.heads, own.first_key, own.num_keys),
                  std::tuple(unit.run, unit.heads, unit.first_key, unit.num_keys));
      }
      EXPECT_EQ(is_shared, i < rows.own_shared.size());
      EXPECT_EQ(unit.first_key % kKeys, 0);
      EXPECT_EQ(unit.num_keys, rows.num_keys[unit.row()] - unit.first_key);
      const int num_members = is_shared ? rows.num_members[unit.row()] : 1;
      if (is_shared) {
        EXPECT_GE(num_members, 2);
      }
      for (int m = 0; m < num_members; ++m) {
        const int row = is_shared ? rows.members[unit.row()][m] : unit.row();
        seen.emplace(row, unit.heads, unit.first_key);
        if (!is_shared) continue;
        // All of its keys are there, in pages that the row has in common with the set's first.
        const auto n = static_cast<std::size_t>(row);
        EXPECT_LE(unit.first_key + kKeys, step.prefixes[n].num_pages * kPageTokens);
        EXPECT_LE(unit.first_key + kKeys, step.sequences[n].num_cached);
        EXPECT_NE(step.prefixes[n].rows >> row % kSharingSlice & 1, 0u);
        EXPECT_EQ(sharing_slice_begin(row) + step.prefixes[n].first(), unit.row());
      }
      if (is_shared) {
        EXPECT_EQ(unit.num_pages(), kPages);
        EXPECT_FALSE(unit.has_newest());
      }
    }
  }
  std::multiset<Keys> expected;
  for (const AttentionSequence& sequence : step.sequences) {
    if (sequence.num_tokens == 0) continue;
    for (int group = 0; group < kGroups; ++group) {
      for (int key = 0; key <= sequence.num_cached; key += kKeys) {
        expected.emplace(sequence.first_token, group, key);
      }
    }
  }
  EXPECT_EQ(seen, expected);
}

TEST(AttentionRowsTest, EachRowsKeysAreAttendedToOnce) {
  for (const std::vector<TestRow>& rows : steps()) {
    const TestStep step(rows);
    for (const int num_blocks : {1, 7, 132}) {
      SCOPED_TRACE(std::to_string(rows.size()) + " rows, " + std::to_string(num_blocks) +
                   " blocks");
      expect_each_key_once<2>(step, num_blocks);
      expect_each_key_once<4>(step, num_blocks);
    }
  }
}

// 45 pages hold 22 units of two and 11 of four.
TEST(AttentionRowsTest, WhatASetSharesIsReadOnce) {
  for (const int count :
       {1, 2, kMaxSharingRows, kMaxSharingRows + 1, kMaxSharingRows + 2, 64, 128}) {
    const TestStep step(rows_about(0, count, 850, 45));
    const int left = count % kMaxSharingRows;  // one alone is no set
    const int num_sets = count / kMaxSharingRows + (left > 1 ? 1 : 0);
    const int in_sets = left == 1 ? count - 1 : count;
    const AttentionRows twos = step.rows_of<2>(kGroups, 0, 1);
    EXPECT_EQ(twos.own_shared.size(), num_sets * 22 * kGroups) << count;
    EXPECT_EQ(twos.own.size(), (count * 27 - in_sets * 22) * kGroups) << count;
    const AttentionRows fours = step.rows_of<4>(kGroups, 0, 1);
    EXPECT_EQ(fours.own_shared.size(), num_sets * 11 * kGroups) << count;
    EXPECT_EQ(fours.own.size(), (count * 14 - in_sets * 11) * kGroups) << count;
  }
}

// A set shares what all of its rows have in common; another set of the same picture is nobody's business.
TEST(AttentionRowsTest, TheShortestOfASetSaysWhatItShares) {
  std::vector<TestRow> rows = rows_about(0, kMaxSharingRows + 2, 850, 45);
  rows[3].num_common = 6;
  const AttentionRows of_common = TestStep(rows).rows_of<2>(1, 0, 1);
  EXPECT_EQ(of_common.own_shared.size(), 3 + 22);
  rows[3] = {40, 0, 45};
  EXPECT_EQ(TestStep(rows).rows_of<2>(1, 0, 1).own_shared.size(), 1 + 22);
  rows[3] = {31, 0, 45};
  EXPECT_EQ(TestStep(rows).rows_of<2>(1, 0, 1).own_shared.size(), 0 + 22);
}

TEST(AttentionRowsTest, BlocksHaveEqualShares) {
  for (const std::vector<TestRow>& rows : steps()) {
    const TestStep step(rows);
    std::vector<int> shared, own, all;
    for (int block = 0; block < 132; ++block) {
      const AttentionRows of_block = step.rows_of<2>(kGroups, block, 132);
      shared.push_back(of_block.own_shared.size());
      own.push_back(of_block.own.size());
      all.push_back(of_block.num_units());
    }
    for (const std::vector<int>* counts : {&shared, &own}) {
      const auto [least, most] = std::minmax_element(counts->begin(), counts->end());
      EXPECT_LE(*most - *least, 1);
    }
    // Without sets the rows' units are divided as if there were no such thing.
    if (shared.back() == 0 && shared.front() == 0) {
      EXPECT_EQ(all, own);
    }
  }
}

// Their lengths are in tokens that are cached.
std::vector<TestRow> long_rows() {
  return {{8000}, {2100}, {-1}, {511}, {512}, {1023}, {1024}, {2047}, {2048}, {3000}, {33}, {0}};
}

TEST(AttentionRowsTest, PartsLieInOneBlockAndBeginAtMultiplesOfTheirSize) {
  constexpr int kPages = 2, kKeys = kPages * kPageTokens;
  const TestStep step(long_rows());
  for (const int num_blocks : {1, 7, 132}) {
    std::map<std::tuple<int, int, int>, std::set<int>> blocks_of_part;
    std::multiset<Keys> seen;
    int before = 0;
    for (int block = 0; block < num_blocks; ++block) {
      AttentionRows rows;
      rows.load<kPages>(step.merging(kGroups), block, num_blocks, OneLane());
      EXPECT_EQ(rows.own.begin, before);
      before = rows.own.end;
      AttentionUnit<kPages> unit;
      for (int i = rows.own.begin; i < rows.own.end; ++i) {
        unit.find_own(rows, i);
        const int merged = units_of_part(rows.units<kPages>(unit.row()));
        const int part = unit.first_key / kKeys / merged;
        EXPECT_LT(part, rows.parts<kPages>(unit.row()));
        blocks_of_part[{unit.row(), unit.heads, part}].insert(block);
        seen.emplace(unit.row(), unit.heads, unit.first_key);
      }
    }
    std::size_t units = 0;
    for (const AttentionSequence& sequence : step.sequences) {
      if (sequence.num_tokens > 0) {
        units += static_cast<std::size_t>(kGroups * (sequence.num_cached / kKeys + 1));
      }
    }
    EXPECT_EQ(seen.size(), units);
    EXPECT_EQ(std::set<Keys>(seen.begin(), seen.end()).size(), units);
    for (const auto& [part, blocks] : blocks_of_part) EXPECT_EQ(blocks.size(), 1U);
  }
}

TEST(AttentionRowsTest, SharesOfPartsAreNearlyEqual) {
  for (const std::vector<TestRow>& rows : {long_rows(), std::vector<TestRow>(32, {4351})}) {
    const TestStep step(rows);
    for (int block = 0; block < 132; ++block) {
      AttentionRows merged;
      merged.load<2>(step.merging(8), block, 132, OneLane());
      const AttentionRows equal = step.rows_of<2>(8, block, 132);
      EXPECT_LT(std::abs(merged.own.size() - equal.own.size()), kMaxUnitsOfPart);
    }
  }
}

TEST(AttentionRowsTest, WithoutAPlanOfThemNothingIsShared) {
  const TestStep step(rows_about(0, 20, 850, 45));
  AttentionStep alone = step.of(kGroups);
  alone.prefixes = nullptr;
  AttentionRows rows;
  rows.load<2>(alone, 0, 1, OneLane());
  EXPECT_EQ(rows.own_shared.size(), 0);
  EXPECT_EQ(rows.own.size(), 20 * 27 * kGroups);
}

}  // namespace
}  // namespace gapless
