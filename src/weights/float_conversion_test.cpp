#include "weights/float_conversion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gapless {
namespace {

TEST(FloatConversion, EveryBf16ComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f32_from_bf16(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(value))));
    } else {
      EXPECT_EQ(bf16_from_f32(value), bits);
    }
  }
}

TEST(FloatConversion, Bf16RoundsToNearestEven) {
  const auto rounded = [](std::uint32_t bits) { return bf16_from_f32(std::bit_cast<float>(bits)); };
  EXPECT_EQ(rounded(0x3F807FFF), 0x3F80);
  EXPECT_EQ(rounded(0x3F808000), 0x3F80);  // a tie: down to even
  EXPECT_EQ(rounded(0x3F808001), 0x3F81);
  EXPECT_EQ(rounded(0x3F818000), 0x3F82);  // a tie: up to even
  EXPECT_EQ(rounded(0xBF818000), 0xBF82);
  EXPECT_EQ(rounded(0x7F7FFFFF), 0x7F80);  // the largest float32 rounds to infinity
  EXPECT_EQ(rounded(0x00000001), 0x0000);
  // NaNs whose high bits alone would be infinity, or whose rounding would wrap around.
  EXPECT_TRUE(std::isnan(f32_from_bf16(rounded(0x7F800001))));
  EXPECT_TRUE(std::isnan(f32_from_bf16(rounded(0xFFFFFFFF))));
}

TEST(FloatConversion, EveryF16AgainstItsDefinition) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto exponent = static_cast<int>((bits >> 10) & 0x1F);
    const auto mantissa = static_cast<float>(bits & 0x3FF);
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    const float value = f32_from_f16(static_cast<std::uint16_t>(bits));
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value));
    } else if (exponent == 31) {
      EXPECT_EQ(value, sign * std::numeric_limits<float>::infinity());
    } else if (exponent == 0) {
      EXPECT_EQ(value, sign * std::ldexp(mantissa, -24));
    } else {
      EXPECT_EQ(value, sign * std::ldexp(1024 + mantissa, exponent - 25));
    }
    EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
  }
}

}  // namespace
}  // namespace gapless
