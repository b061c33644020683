#include "model/device_grammars.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "grammar/regex_grammar.h"
#include "kernels/kernels.h"

namespace gapless {
namespace {

constexpr std::int32_t kEos = 0;

// The CPU device's memory is the host's.
class DeviceGrammarsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int byte = 0; byte < 128; ++byte)
      texts_.emplace_back(byte == 0 ? 0 : 1, static_cast<char>(byte));
    limits_.max_seats = 2;
  }
  void TearDown() override { grammars_.reset(); }

  void make(std::size_t table_bytes) {
    grammars_ = DeviceGrammars::create(*device_, texts_, kEos, 140, limits_, table_bytes).value();
  }
  static std::shared_ptr<const Grammar> pattern(const std::string& text) {
    return std::make_shared<const Grammar>(compile_regex(text).value());
  }
  std::shared_ptr<const DeviceGrammar> hold(const std::shared_ptr<const Grammar>& grammar) {
    auto held = grammars_->hold(grammar, *grammar);
    EXPECT_TRUE(held.ok()) << held.status().to_string();
    return *held;
  }
  // By the tables on the device.
  bool accepts_there(const DeviceGrammar& at, const std::string& text) {
    const GrammarTables& tables = grammars_->params().grammars[at.index];
    GrammarRow row;
    begin_row(tables, row);
    for (const char byte : text) {
      if (!take_byte(tables, row, static_cast<std::uint8_t>(byte))) return false;
    }
    return may_end(tables, row);
  }

  std::unique_ptr<Device> device_ = open_device("cpu").value();
  StepLimits limits_;
  std::vector<std::string> texts_;
  std::unique_ptr<DeviceGrammars> grammars_;
};

TEST_F(DeviceGrammarsTest, TablesGoUpOnceAndAreWalkedThere) {
  texts_.emplace_back("01234567890123456789");
  make(1 << 20);
  const auto abc = pattern("abc+"), digits = pattern("[0-9]{3}");
  EXPECT_EQ(grammars_->find(abc), nullptr);
  const auto first = hold(abc), second = hold(digits), again = hold(abc);
  EXPECT_EQ(first->index, again->index);
  EXPECT_NE(first->index, second->index);
  EXPECT_EQ(grammars_->counts().num_uploads, 2);
  EXPECT_TRUE(accepts_there(*first, "abcc"));
  EXPECT_FALSE(accepts_there(*first, "123"));
  EXPECT_TRUE(accepts_there(*second, "123"));
  const GrammarTables* const tables = grammars_->params().grammars;
  EXPECT_NE(tables[first->index].id, tables[second->index].id);
  EXPECT_NE(tables[first->index].id, 0);
  // The vocabulary, and the rows of logits behind it, which are no text.
  const TokenTexts texts = grammars_->params().texts;
  EXPECT_EQ(texts.vocab, 140);
  EXPECT_EQ(texts.first[kEos + 1], 0);
  EXPECT_EQ(texts.bytes[texts.first['x']], 'x');
  EXPECT_EQ(texts.first[140], 127 + 20);
  EXPECT_EQ(texts.heads['x'], std::uint64_t{'x'});
  EXPECT_EQ(texts.heads[128], 0x3736353433323130u) << "01234567";
  EXPECT_EQ(texts.heads[139], 0u);
  EXPECT_EQ(texts.summaries['x'].word, summary_of("x").word);
  EXPECT_EQ(texts.summaries[128].num_characters(), 20);
  EXPECT_EQ(texts.summaries[139].kinds(), 0u);
}

TEST_F(DeviceGrammarsTest, WhatNobodyHoldsMakesRoomTheLongestUnusedFirst) {
  const auto one = pattern("a{1,40}b"), two = pattern("b{1,40}c"), three = pattern("c{1,40}d");
  make(1 << 20);
  (void)hold(one);
  make(grammars_->counts().bytes * 5 / 2);  // room for two of that size
  std::shared_ptr<const DeviceGrammar> held_one = hold(one);
  const auto held_two = hold(two);
  EXPECT_EQ(hold(three), nullptr) << "both are held";
  EXPECT_TRUE(accepts_there(*held_one, "aab"));
  const std::int32_t index = held_one->index;
  held_one.reset();
  EXPECT_NE(grammars_->find(one), nullptr) << "it stays until its place is needed";
  const auto held_three = hold(three);
  ASSERT_NE(held_three, nullptr);
  EXPECT_EQ(held_three->index, index);
  EXPECT_EQ(grammars_->find(one), nullptr);
  EXPECT_TRUE(accepts_there(*held_two, "bbc"));
  EXPECT_TRUE(accepts_there(*held_three, "ccd"));
  EXPECT_EQ(grammars_->counts().held, 2);
  // Larger than all.
  EXPECT_EQ(hold(pattern("[a-z]{1,600}[0-9]{1,600}")), nullptr);
  EXPECT_EQ(grammars_->counts().resident, 2);
}

// A grammar of the same address is another one.
TEST_F(DeviceGrammarsTest, AnOwnerThatEndedIsNobody) {
  make(1 << 20);
  auto abc = pattern("abc");
  const auto held = hold(abc);
  abc.reset();
  for (int i = 0; i < 50; ++i) {
    const auto other = pattern("x{" + std::to_string(i + 1) + "}");
    EXPECT_EQ(grammars_->find(other), nullptr);
    EXPECT_TRUE(accepts_there(*hold(other), std::string(static_cast<std::size_t>(i) + 1, 'x')));
  }
  EXPECT_TRUE(accepts_there(*held, "abc"));
}

// While requests run: allocations, pageable copies and synchronisations would count (I7).
TEST_F(DeviceGrammarsTest, AnUploadStallsNobody) {
  make(8u << 20);
  const std::int64_t before = device_->counters().forbidden_in_steady_state();
  const auto large = pattern("[a-z]{1,3000}");
  ASSERT_NE(hold(large), nullptr);
  EXPECT_GT(grammars_->counts().bytes, kUploadPieceBytes / 64);
  EXPECT_EQ(device_->counters().forbidden_in_steady_state(), before);
}

// Who holds one may outlive the place where it was.
TEST_F(DeviceGrammarsTest, HoldersMayOutliveIt) {
  make(1 << 20);
  const auto held = hold(pattern("abc"));
  grammars_.reset();
  EXPECT_EQ(held->index, 0);
}

TEST_F(DeviceGrammarsTest, CountsTheMasksThatWereFound) {
  make(1 << 20);
  EXPECT_EQ(grammars_->count_found_masks().value(), 0);
  const GrammarMaskCache cache = grammars_->params().cache;
  cache.turns[0] = 3;  // as the op does
  cache.turns[cache.num_sets - 1] = 2;
  EXPECT_EQ(grammars_->count_found_masks().value(), 5);
}

}  // namespace
}  // namespace gapless
