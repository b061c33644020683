#include "image/normalize.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gapless {
namespace {

float bf16_value(std::size_t v) {
  return internal::bf16_to_float(kPixelTableBf16[v]);
}

TEST(PixelTableTest, Bf16ValuesOfTheReference) {
  EXPECT_EQ(bf16_value(0), -1.0f);
  EXPECT_EQ(bf16_value(1), -0.9921875f);
  EXPECT_EQ(bf16_value(2), -0.984375f);
  EXPECT_EQ(bf16_value(127), -0.00390625f);
  EXPECT_EQ(bf16_value(128), 0.0078125f);
  EXPECT_EQ(bf16_value(255), 1.0f);
}

// The reference's three roundings and one rounding of the exact value differ in half the table.
TEST(PixelTableTest, ThreeRoundingsDifferFromOneIn128Values) {
  int num_different = 0;
  for (std::size_t v = 0; v < 256; ++v) {
    const auto once =
        internal::round_to_bf16(static_cast<float>(2.0 * static_cast<double>(v) / 255.0 - 1.0));
    if (once != kPixelTableBf16[v]) ++num_different;
  }
  EXPECT_EQ(num_different, 128);
}

TEST(PixelTableTest, F32IsTwoVOver255MinusOne) {
  EXPECT_EQ(kPixelTableF32[0], -1.0f);
  EXPECT_EQ(kPixelTableF32[255], 1.0f);
  for (std::size_t v = 0; v < 256; ++v) {
    EXPECT_NEAR(kPixelTableF32[v], 2.0 * static_cast<double>(v) / 255.0 - 1.0, 1.3e-7);
    EXPECT_NEAR(bf16_value(v), kPixelTableF32[v], 4e-3);
  }
}

TEST(PixelTableTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(internal::round_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(internal::round_to_bf16(1.00390625f), 0x3f80);  // a tie, down to even
  EXPECT_EQ(internal::round_to_bf16(1.01171875f), 0x3f82);  // a tie, up to even
  EXPECT_EQ(internal::round_to_bf16(-1.0039064f), 0xbf81);
}

}  // namespace
}  // namespace gapless
