#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace gapless {
namespace {

// Every finite e4m3 number that is not negative, in rising order, from its definition.
std::vector<float> all_numbers() {
  std::vector<float> numbers;
  for (int code = 0; code < 127; ++code) {  // 127 is not a number
    const int exponent = code >> 3, mantissa = code & 7;
    numbers.push_back(exponent == 0
                          ? std::ldexp(static_cast<float>(mantissa), -9)
                          : std::ldexp(1.0f + static_cast<float>(mantissa) / 8, exponent - 7));
  }
  return numbers;
}

TEST(Fp8Test, NumbersStayAndMidpointsGoToTheEvenOne) {
  const std::vector<float> numbers = all_numbers();
  ASSERT_EQ(numbers.back(), kFp8Max);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(round_to_e4m3(numbers[i]), numbers[i]);
    EXPECT_EQ(round_to_e4m3(-numbers[i]), -numbers[i]);
    if (i + 1 == numbers.size()) break;
    const float middle = (numbers[i] + numbers[i + 1]) / 2;  // exact
    EXPECT_EQ(round_to_e4m3(middle), numbers[i % 2 == 0 ? i : i + 1]) << middle;
    EXPECT_EQ(round_to_e4m3(std::nextafter(middle, 0.0f)), numbers[i]);
    EXPECT_EQ(round_to_e4m3(std::nextafter(middle, 500.0f)), numbers[i + 1]);
  }
}

TEST(Fp8Test, LargerValuesSaturate) {
  for (const float value : {449.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(round_to_e4m3(value), kFp8Max);
    EXPECT_EQ(round_to_e4m3(-value), -kFp8Max);
  }
  EXPECT_TRUE(std::isnan(round_to_e4m3(std::nanf(""))));
}

TEST(Fp8Test, CodesAreTheirNumbers) {
  const std::vector<float> numbers = all_numbers();
  for (std::size_t code = 0; code < numbers.size(); ++code) {
    const auto positive = static_cast<std::uint8_t>(code);
    EXPECT_EQ(float_from_e4m3(positive), numbers[code]);
    EXPECT_EQ(float_from_e4m3(positive | 0x80), -numbers[code]);
  }
  EXPECT_TRUE(std::signbit(float_from_e4m3(0x80)));
  EXPECT_TRUE(std::isnan(float_from_e4m3(0x7f)));
  EXPECT_TRUE(std::isnan(float_from_e4m3(0xff)));
}

TEST(Fp8Test, TheCodeOfAValueIsThatOfItsRounding) {
  const auto expect_rounding = [](float value) {
    const float rounded = round_to_e4m3(value), actual = float_from_e4m3(e4m3_from_float(value));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(rounded)) << value;
  };
  const std::vector<float> numbers = all_numbers();
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    const float middle = (numbers[i] + numbers[i + 1]) / 2;
    for (const float sign : {1.0f, -1.0f}) {
      expect_rounding(sign * numbers[i]);
      expect_rounding(sign * middle);
      expect_rounding(sign * std::nextafter(middle, 0.0f));
      expect_rounding(sign * std::nextafter(middle, 500.0f));
    }
  }
  for (const float value : {448.0f, 449.0f, 464.0f, 500.0f, 1e30f, 1e-30f, 1e-42f,
                            std::numeric_limits<float>::infinity()}) {
    expect_rounding(value);
    expect_rounding(-value);
  }
  EXPECT_TRUE(std::isnan(float_from_e4m3(e4m3_from_float(std::nanf("")))));
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 997) {
    expect_rounding(std::bit_cast<float>(bits));
  }
}

// A number of half precision, of any kind.
float float_from_half(std::uint32_t half) {
  const int exponent = static_cast<int>(half >> 10 & 0x1f),
            mantissa = static_cast<int>(half & 0x3ff);
  const float sign = (half & 0x8000u) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

TEST(Fp8Test, TwoAtATimeTheyAreTheSameNumbersOfHalfPrecision) {
  EXPECT_EQ(float_from_half(kHalvesOf256 & 0xffffu), 256);
  EXPECT_EQ(kHalvesOf256 >> 16, kHalvesOf256 & 0xffffu);
  for (unsigned low = 0; low < 256; ++low) {
    for (unsigned high = 0; high < 256; ++high) {
      const std::uint32_t spread = low << 8 | high << 24;
      const std::uint32_t small = small_halves_from_e4m3(spread);
      const std::uint32_t no_number = not_numbers_of_e4m3(spread);
      for (const unsigned shift : {0u, 16u}) {
        const auto code = static_cast<std::uint8_t>(shift == 0 ? low : high);
        const std::uint32_t mask = no_number >> shift & 0xffffu;
        if ((code & 0x7f) == 0x7f) {
          ASSERT_EQ(mask, 0x7fffu);
          continue;
        }
        ASSERT_EQ(mask, 0u) << unsigned{code};
        const float half = float_from_half(small >> shift & 0xffffu);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(half * 256),
                  std::bit_cast<std::uint32_t>(float_from_e4m3(code)));
      }
    }
  }
}

TEST(Fp8Test, TheRowsExponentIsTheSmallestThatTakesItsLargestValue) {
  EXPECT_EQ(fp8_row_exponent(0), 0);
  EXPECT_EQ(fp8_row_exponent(448), 0);
  EXPECT_EQ(fp8_row_exponent(449), 1);
  EXPECT_EQ(fp8_row_exponent(224), -1);
  EXPECT_EQ(fp8_row_exponent(57344), kFp8MaxRowExponent);
  EXPECT_EQ(fp8_row_exponent(57345), kFp8MaxRowExponent);
  EXPECT_EQ(fp8_row_exponent(1e30f), kFp8MaxRowExponent);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponents(-60, 15);
  for (int i = 0; i < 10'000; ++i) {
    const float value = std::exp2(exponents(random));
    const int e = fp8_row_exponent(value);
    EXPECT_LE(value, std::ldexp(kFp8Max, e));
    EXPECT_GT(value, std::ldexp(kFp8Max, e - 1));
  }
}

}  // namespace
}  // namespace gapless
