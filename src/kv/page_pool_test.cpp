#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace gapless {
namespace {

TEST(PagePoolTest, NeverGivesOutTheTrashPageOrAPageTwice) {
  PagePool pool(8);
  std::vector<PageId> pages(7);
  ASSERT_TRUE(pool.allocate(pages));
  const std::set<PageId> distinct(pages.begin(), pages.end());
  EXPECT_EQ(distinct.size(), 7u);
  EXPECT_FALSE(distinct.contains(PageId(0)));
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(PagePoolTest, AllocatesAllOrNothing) {
  PagePool pool(4);
  std::vector<PageId> pages(4);
  EXPECT_FALSE(pool.allocate(pages));
  EXPECT_EQ(pool.num_free(), 3);
}

TEST(PagePoolTest, ASharedPageIsFreeWhenItsLastReferenceGoes) {
  PagePool pool(2);
  std::vector<PageId> page(1);
  ASSERT_TRUE(pool.allocate(page));
  pool.add_ref(page[0]);
  pool.drop_ref(page[0]);
  EXPECT_EQ(pool.num_free(), 0);
  pool.drop_ref(page[0]);
  EXPECT_EQ(pool.num_free(), 1);
}

// What only the cache refers to is in use, and held by nobody.
TEST(PagePoolTest, ThePagesThatSomebodyHoldsAreCounted) {
  PagePool pool(4);
  std::vector<PageId> pages(2);
  ASSERT_TRUE(pool.allocate(pages));
  EXPECT_EQ(pool.num_held(), 2);
  pool.add_cache_ref(pages[0]);
  pool.add_cache_ref(pages[0]);  // of two entries
  EXPECT_EQ(pool.num_held(), 2);
  pool.drop_ref(pages[0]);
  EXPECT_FALSE(pool.is_held(pages[0]));
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_EQ(pool.num_in_use(), 2);
  pool.add_ref(pages[0]);
  pool.add_ref(pages[0]);  // two sequences share it
  EXPECT_EQ(pool.num_held(), 2);
  pool.drop_ref(pages[0]);
  EXPECT_EQ(pool.num_held(), 2);
  pool.drop_cache_ref(pages[0]);
  pool.drop_cache_ref(pages[0]);
  EXPECT_EQ(pool.num_held(), 2);
  pool.drop_ref(pages[0]);
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PagePoolDeathTest, AHolderDoesNotDropTheCachesReference) {
  PagePool pool(2);
  std::vector<PageId> page(1);
  ASSERT_TRUE(pool.allocate(page));
  pool.add_cache_ref(page[0]);
  pool.drop_ref(page[0]);
  EXPECT_DEATH(pool.drop_ref(page[0]), "freed twice");
}

TEST(PagePoolDeathTest, FreeingTwiceStopsTheProcess) {
  PagePool pool(2);
  std::vector<PageId> page(1);
  ASSERT_TRUE(pool.allocate(page));
  pool.drop_ref(page[0]);
  EXPECT_DEATH(pool.drop_ref(page[0]), "freed twice");
}

TEST(PagePoolTest, PagesForTokensRoundsUp) {
  EXPECT_EQ(pages_for_tokens(0), 0);
  EXPECT_EQ(pages_for_tokens(1), 1);
  EXPECT_EQ(pages_for_tokens(16), 1);
  EXPECT_EQ(pages_for_tokens(730), 46);
}

}  // namespace
}  // namespace gapless
