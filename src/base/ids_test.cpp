#include "base/ids.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace gapless {
namespace {

static_assert(!std::is_convertible_v<RowId, PageId>);
static_assert(!std::is_convertible_v<int, RowId>);

TEST(IdsTest, DefaultIsInvalid) {
  EXPECT_FALSE(RowId().valid());
  EXPECT_TRUE(RowId(0).valid());
  EXPECT_LT(RowId(1), RowId(2));
}

}  // namespace
}  // namespace gapless
