#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include "kv/page_table.h"

namespace gapless {
namespace {

ContentHash image(std::uint8_t name) {
  ContentHash hash{};
  hash.fill(name);
  return hash;
}

// A sequence with `num_pages` pages whose prefix of 20 tokens (2 pages) goes to the cache.
class PrefixCacheTest : public ::testing::Test {
 protected:
  void compute_and_leave(std::uint8_t name) {
    PageTable table(4);
    ASSERT_TRUE(table.extend(pool_, 3));
    cache_.insert(image(name), 20, table.pages().first(2));
    table.release(pool_);
  }

  PagePool pool_{9};
  PrefixCache cache_{pool_, 3, 4};
};

TEST_F(PrefixCacheTest, FindsFullPagesAndTail) {
  compute_and_leave(1);
  const auto hit = cache_.find(image(1), 20);
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->full_pages.size(), 1u);
  EXPECT_TRUE(hit->tail_page.valid());
  EXPECT_FALSE(cache_.find(image(1), 21).has_value());
  EXPECT_FALSE(cache_.find(image(2), 20).has_value());
  EXPECT_EQ(pool_.num_in_use(), 2);
}

// As the prefixes of one prompt with two images do.
TEST_F(PrefixCacheTest, EntriesThatBeginWithEachOtherShareTheirPages) {
  PageTable table(4);
  ASSERT_TRUE(table.extend(pool_, 3));
  cache_.insert(image(1), 20, table.pages().first(2));
  cache_.insert(image(2), 40, table.pages());
  EXPECT_EQ(cache_.num_reclaimable(), 0) << "a sequence holds them";
  table.release(pool_);
  EXPECT_EQ(pool_.num_in_use(), 3);
  EXPECT_EQ(cache_.num_reclaimable(), 3);

  ASSERT_TRUE(cache_.reclaim(6)) << "one page more than are free";
  EXPECT_EQ(pool_.num_free() + cache_.num_reclaimable(), 8);
  ASSERT_TRUE(cache_.reclaim(8));
  EXPECT_EQ(cache_.num_entries(), 0);
  EXPECT_EQ(pool_.num_in_use(), 0);
}

TEST_F(PrefixCacheTest, OfASharedPrefixTheLongerEntryIsGivenUpForItsOwnPage) {
  PageTable table(4);
  ASSERT_TRUE(table.extend(pool_, 3));
  cache_.insert(image(1), 20, table.pages().first(2));
  cache_.insert(image(2), 40, table.pages());
  table.release(pool_);
  PageTable sharer(4);  // of the shorter one, tail included
  sharer.share(pool_, cache_.find(image(1), 20)->full_pages);
  pool_.add_ref(cache_.find(image(1), 20)->tail_page);
  EXPECT_EQ(cache_.num_reclaimable(), 1);
  EXPECT_FALSE(cache_.reclaim(7));
  EXPECT_EQ(cache_.num_entries(), 2) << "nothing is given up in vain";
  ASSERT_TRUE(cache_.reclaim(6));
  EXPECT_TRUE(cache_.find(image(1), 20).has_value());
  EXPECT_FALSE(cache_.find(image(2), 40).has_value());
}

TEST_F(PrefixCacheTest, APrefixThatEndsWithAPageHasNoTail) {
  PageTable table(4);
  ASSERT_TRUE(table.extend(pool_, 3));
  cache_.insert(image(1), 32, table.pages().first(2));
  EXPECT_EQ(cache_.find(image(1), 32)->full_pages.size(), 2u);
  EXPECT_FALSE(cache_.find(image(1), 32)->tail_page.valid());
  table.release(pool_);
}

TEST_F(PrefixCacheTest, ReclaimGivesUpTheLeastRecentlyUsedFirst) {
  compute_and_leave(1);
  compute_and_leave(2);
  ASSERT_TRUE(cache_.find(image(1), 20).has_value());
  ASSERT_TRUE(cache_.reclaim(5));
  EXPECT_TRUE(cache_.find(image(1), 20).has_value());
  EXPECT_FALSE(cache_.find(image(2), 20).has_value());
}

TEST_F(PrefixCacheTest, ReclaimLeavesWhatSequencesUseAndGivesUpNothingInVain) {
  compute_and_leave(1);
  PageTable user(4);
  user.share(pool_, cache_.find(image(1), 20)->full_pages);
  pool_.add_ref(cache_.find(image(1), 20)->tail_page);
  EXPECT_FALSE(cache_.reclaim(8));
  EXPECT_TRUE(cache_.find(image(1), 20).has_value());
  pool_.drop_ref(cache_.find(image(1), 20)->tail_page);
  user.release(pool_);
  EXPECT_TRUE(cache_.reclaim(8));
  EXPECT_EQ(pool_.num_in_use(), 0);
}

TEST_F(PrefixCacheTest, TheOldestEntryMakesRoomForANewOne) {
  compute_and_leave(1);
  compute_and_leave(2);
  ASSERT_TRUE(cache_.find(image(1), 20).has_value());
  PageTable small(1);
  for (std::uint8_t name = 3; name <= 4; ++name) {
    ASSERT_TRUE(small.extend(pool_, 1));
    cache_.insert(image(name), 16, small.pages());
    small.release(pool_);
  }
  EXPECT_EQ(cache_.num_entries(), 3);
  EXPECT_TRUE(cache_.find(image(1), 20).has_value());
  EXPECT_FALSE(cache_.find(image(2), 20).has_value());
  EXPECT_TRUE(cache_.find(image(4), 16).has_value());
  cache_.clear();
  EXPECT_EQ(pool_.num_in_use(), 0);
}

TEST_F(PrefixCacheTest, AnEmptyPlaceIsFilledBeforeALivePrefixIsGivenUp) {
  compute_and_leave(1);
  const auto hit = cache_.find(image(1), 20);
  const PageId tail = hit->tail_page;
  PageTable user(4);
  user.share(pool_, hit->full_pages);
  pool_.add_ref(tail);
  compute_and_leave(2);  // used last
  ASSERT_TRUE(cache_.reclaim(6));
  EXPECT_EQ(cache_.num_entries(), 1) << "the place of prefix 2 is empty";
  compute_and_leave(3);
  compute_and_leave(4);
  EXPECT_EQ(cache_.num_entries(), 3);
  EXPECT_TRUE(cache_.find(image(1), 20).has_value());
  pool_.drop_ref(tail);
  user.release(pool_);
}

TEST_F(PrefixCacheTest, ReclaimForgetsNoPrefixWhosePagesAreAllInUse) {
  compute_and_leave(1);
  const auto hit = cache_.find(image(1), 20);
  const PageId tail = hit->tail_page;
  PageTable user(4);
  user.share(pool_, hit->full_pages);
  pool_.add_ref(tail);
  compute_and_leave(2);
  ASSERT_TRUE(cache_.reclaim(6));
  EXPECT_TRUE(cache_.find(image(1), 20).has_value()) << "older, but dropping it frees nothing";
  EXPECT_FALSE(cache_.find(image(2), 20).has_value());
  pool_.drop_ref(tail);
  user.release(pool_);
}

TEST_F(PrefixCacheTest, APrefixOfAllThePagesOfAnEntryIsKept) {
  PageTable table(4);
  ASSERT_TRUE(table.extend(pool_, 4));
  cache_.insert(image(1), 64, table.pages());
  EXPECT_EQ(cache_.find(image(1), 64)->full_pages.size(), 4u);
  table.release(pool_);
}

TEST_F(PrefixCacheTest, APrefixIsKeptOnce) {
  PageTable table(4);
  ASSERT_TRUE(table.extend(pool_, 2));
  cache_.insert(image(1), 20, table.pages());
  cache_.insert(image(1), 20, table.pages());
  table.release(pool_);
  EXPECT_EQ(cache_.num_entries(), 1);
}

TEST(PrefixCacheOffTest, KeepsNothing) {
  PagePool pool(4);
  PrefixCache cache(pool, 0, 4);
  PageTable table(4);
  ASSERT_TRUE(table.extend(pool, 2));
  cache.insert(image(1), 20, table.pages());
  EXPECT_FALSE(cache.find(image(1), 20).has_value());
  table.release(pool);
  EXPECT_EQ(pool.num_in_use(), 0);
}

}  // namespace
}  // namespace gapless
