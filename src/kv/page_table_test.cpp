#include "kv/page_table.h"

#include <gtest/gtest.h>

#include <array>

namespace gapless {
namespace {

TEST(PageTableTest, CacheSlotFollowsThePages) {
  PagePool pool(4);
  PageTable table(3);
  ASSERT_TRUE(table.extend(pool, 2));
  EXPECT_EQ(table.cache_slot(0), table.pages()[0].value * 16);
  EXPECT_EQ(table.cache_slot(17), table.pages()[1].value * 16 + 1);
}

TEST(PageTableTest, ExtendIsAllOrNothing) {
  PagePool pool(3);
  PageTable table(8);
  EXPECT_FALSE(table.extend(pool, 3));
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PageTableTest, SharingAndReplacingKeepCount) {
  PagePool pool(6);
  PageTable first(4), second(4), third(4);
  ASSERT_TRUE(first.extend(pool, 2));
  second.share(pool, first.pages().first(1));
  ASSERT_TRUE(second.extend(pool, 1));
  ASSERT_TRUE(third.extend(pool, 2));
  third.replace_front(pool, first.pages().first(1));
  EXPECT_EQ(third.pages()[0], first.pages()[0]);
  EXPECT_EQ(pool.num_refs(first.pages()[0]), 3);
  EXPECT_EQ(pool.num_in_use(), 4);
  first.release(pool);
  second.release(pool);
  EXPECT_EQ(pool.num_in_use(), 2);
  third.release(pool);
  EXPECT_EQ(pool.num_in_use(), 0);
}

TEST(PageTableDeathTest, APositionBeyondThePagesStopsTheProcess) {
  PagePool pool(2);
  PageTable table(1);
  ASSERT_TRUE(table.extend(pool, 1));
  EXPECT_DEATH((void)table.cache_slot(16), "beyond the sequence's pages");
}

}  // namespace
}  // namespace gapless
