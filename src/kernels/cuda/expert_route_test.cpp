#include "kernels/cuda/expert_route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_rows.h"

namespace gapless {
namespace {

// As the kernel for so many rows has it.
int most_rows_of_pass(int num_rows) {
  return num_rows <= 32 ? kPassRows<32, PreparedFormat::kFp8> : kPassRows<64, PreparedFormat::kFp8>;
}

// Rows that are done chose nobody.
std::unique_ptr<ExpertRoute> route_of(const std::vector<std::vector<int>>& chosen,
                                      int num_experts) {
  auto route = std::make_unique<ExpertRoute>();
  for (std::size_t row = 0; row < chosen.size(); ++row) {
    route->chosen[row] = 0;
    for (const int expert : chosen[row]) route->chosen[row] |= std::uint64_t{1} << expert;
  }
  const int num_rows = static_cast<int>(chosen.size());
  if (num_rows <= 32) {
    route->make_passes<kPassRows<32, PreparedFormat::kFp8>>(num_rows, num_experts, OneLane());
  } else {
    route->make_passes<kPassRows<64, PreparedFormat::kFp8>>(num_rows, num_experts, OneLane());
  }
  return route;
}

std::vector<std::vector<int>> random_choices(int num_rows, int num_experts, int count,
                                             unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<int>> chosen;
  for (int row = 0; row < num_rows; ++row) {
    std::set<int> own;
    while (row % 7 != 6 && static_cast<int>(own.size()) < count) {
      own.insert(static_cast<int>(random() % static_cast<unsigned>(num_experts)));
    }
    chosen.emplace_back(own.begin(), own.end());
  }
  return chosen;
}

void expect_each_pair_in_one_pass(const std::vector<std::vector<int>>& chosen,
                                  const ExpertRoute& route) {
  const int most_rows = most_rows_of_pass(static_cast<int>(chosen.size()));
  ASSERT_LE(route.num_passes, kMaxPasses);
  std::multiset<std::pair<int, int>> seen;  // row, expert
  int expert_before = -1;
  for (int i = 0; i < route.num_passes; ++i) {
    const ExpertPass& pass = route.passes[i];
    EXPECT_GE(pass.expert, expert_before);
    expert_before = pass.expert;
    EXPECT_GE(pass.num_rows, 1);
    EXPECT_LE(pass.num_rows, most_rows);
    for (int k = 0; k < pass.num_rows; ++k) {
      const int pair = route.pairs[pass.first + k];
      const int row = ExpertRoute::row_of(pair);
      seen.emplace(row, pass.expert);
      const auto& own = chosen[static_cast<std::size_t>(row)];
      EXPECT_EQ(own[static_cast<std::size_t>(ExpertRoute::rank_of(pair))], pass.expert);
    }
  }
  std::multiset<std::pair<int, int>> expected;
  std::map<int, int> experts;  // by how many rows chosen
  for (std::size_t row = 0; row < chosen.size(); ++row) {
    for (const int expert : chosen[row]) {
      expected.emplace(static_cast<int>(row), expert);
      ++experts[expert];
    }
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(route.num_experts, static_cast<int>(experts.size()));
  // Weights are read as seldom as can be.
  int fewest_passes = 0;
  for (const auto& [expert, rows] : experts) fewest_passes += (rows + most_rows - 1) / most_rows;
  EXPECT_EQ(route.num_passes, fewest_passes);
}

TEST(ExpertRouteTest, EachChoiceIsInOnePass) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    for (const int rows : {1, 2, 8, 9, 16, 17, 32, 33, 64}) {
      for (const int experts : {16, 64}) {
        const auto chosen = random_choices(rows, experts, 8, seed);
        expect_each_pair_in_one_pass(chosen, *route_of(chosen, experts));
      }
    }
  }
}

// The most passes that there can be.
TEST(ExpertRouteTest, AllRowsMayChooseAlike) {
  const std::vector<int> same = {0, 3, 5, 9, 17, 40, 62, 63};
  for (const std::size_t rows : {1u, 9u, 32u, 64u}) {
    const std::vector<std::vector<int>> chosen(rows, same);
    expect_each_pair_in_one_pass(chosen, *route_of(chosen, 64));
  }
}

TEST(ExpertRouteTest, NobodyMayChoose) {
  const auto route = route_of({{}, {}}, 16);
  EXPECT_EQ(route->num_passes, 0);
  EXPECT_FALSE(ExpertUnits(route->share_of(128, 0, 132), 128).has());
}

// Each tile of each pass is one block's, in units of up to four; no block has two tiles more than another.
TEST(ExpertRouteTest, BlocksHaveEqualShares) {
  for (const int rows : {1, 3, 32}) {
    const auto route = route_of(random_choices(rows, 64, 8, 1), 64);
    for (const int tiles : {1, 8, 128}) {
      for (const int num_blocks : {1, 7, 132}) {
        std::map<std::pair<int, int>, int> seen;
        int least = 1 << 30, most = 0;
        for (int block = 0; block < num_blocks; ++block) {
          int own = 0;
          for (ExpertUnits units(route->share_of(tiles, block, num_blocks), tiles); units.has();
               units.next()) {
            ASSERT_GE(units.size(), 1);
            ASSERT_LE(units.size(), kUnitTiles);
            ASSERT_LE(units.tile() + units.size(), tiles);
            for (int i = 0; i < units.size(); ++i) ++seen[{units.pass(), units.tile() + i}];
            own += units.size();
          }
          least = std::min(least, own), most = std::max(most, own);
        }
        EXPECT_LE(most - least, 1);
        EXPECT_EQ(static_cast<int>(seen.size()), route->num_passes * tiles);
        for (const auto& [tile, count] : seen) EXPECT_EQ(count, 1);
      }
    }
  }
}

}  // namespace
}  // namespace gapless
