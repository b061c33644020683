#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/bump_layout.h"

namespace gapless {
namespace {

TEST(RopeTable, AnglesArePositionTimesFrequency) {
  constexpr int kRotaryDim = 32;
  const std::vector<float> table = make_rope_table(2048, kRotaryDim, 10000);
  ASSERT_EQ(table.size(), 2048u * kRotaryDim);
  for (const int position : {0, 1, 730, 2047}) {
    for (int j = 0; j < kRotaryDim / 2; ++j) {
      const double angle = position * std::pow(10000.0, -2.0 * j / kRotaryDim);
      const auto at = static_cast<std::size_t>(position * kRotaryDim + 2 * j);
      // Half a unit in the last place of a float32 angle of 2047.
      EXPECT_NEAR(table[at], std::cos(angle), 3e-4) << position << " " << j;
      EXPECT_NEAR(table[at + 1], std::sin(angle), 3e-4) << position << " " << j;
    }
  }
  // The first pair turns by exactly the position.
  EXPECT_FLOAT_EQ(table[1 * kRotaryDim], std::cos(1.0f));
  EXPECT_FLOAT_EQ(table[1 * kRotaryDim + 1], std::sin(1.0f));
}

TEST(BumpLayout, RewoundArraysShareBytesAndThePeakCounts) {
  alignas(256) static std::byte memory[4096];
  BumpLayout layout(memory);
  EXPECT_EQ(layout.take(10), memory);
  const std::size_t mark = layout.mark();
  EXPECT_EQ(layout.take(1000), memory + 256);
  layout.rewind(mark);
  EXPECT_EQ(layout.take_array<float>(4), reinterpret_cast<float*>(memory + 256));
  EXPECT_EQ(layout.peak_bytes(), 256u + 1024u);

  BumpLayout sizes;
  sizes.take(10);
  sizes.take(1);
  EXPECT_EQ(sizes.peak_bytes(), 512u);
}

}  // namespace
}  // namespace gapless
