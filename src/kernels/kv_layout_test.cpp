#include "kernels/kv_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace gapless {
namespace {

// Whoever copies a page's heads copies their keys and values with them, and whoever looks for a head's values
// finds them behind its keys.
TEST(KvLayoutTest, AHeadsKeysAndValuesOfAPageAreNeighbours) {
  const KvLayout layout{.num_heads = 3, .head_dim = 8};
  EXPECT_EQ(layout.page_size(), 3 * 2 * kPageTokens * 8);
  EXPECT_EQ(layout.at(KvPart::kKeys, 2 * kPageTokens, 0), 2 * layout.page_size());
  std::int64_t next = 0;
  for (int page = 0; page < 2; ++page) {
    for (int head = 0; head < layout.num_heads; ++head) {
      for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
        for (int token = 0; token < kPageTokens; ++token) {
          EXPECT_EQ(layout.at(part, page * kPageTokens + token, head), next);
          EXPECT_EQ(page * layout.page_size() + layout.in_page(part, head, token), next);
          next += layout.head_dim;
        }
      }
    }
  }
  EXPECT_EQ(next, 2 * layout.page_size());
}

}  // namespace
}  // namespace gapless
