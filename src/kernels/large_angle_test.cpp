#include "kernels/large_angle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace gapless {
namespace {

float from_bf16_bits(std::uint32_t bits) {
  bits <<= 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TEST(LargeAngle, EveryLargeOneOfBfloat16IsWhereTheCLibraryHasIt) {
  int num_seen = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float z = from_bf16_bits(bits);
    if (!(std::fabs(z) >= kLargeAngle) || std::isinf(z)) continue;
    ++num_seen;
    const QuarteredAngle angle = quartered(z);
    ASSERT_LE(std::fabs(angle.angle), 0.7853982f) << z;
    ASSERT_GE(angle.quarters, 0) << z;
    ASSERT_LE(angle.quarters, 3) << z;
    const CosineAndSine of =
        CosineAndSine{std::cos(angle.angle), std::sin(angle.angle)}.turned(angle.quarters);
    const double exact = z;
    ASSERT_NEAR(of.cosine, std::cos(exact), std::fabs(std::cos(exact)) * 2e-7) << z;
    ASSERT_NEAR(of.sine, std::sin(exact), std::fabs(std::sin(exact)) * 2e-7) << z;
  }
  // Exponents from 2^17 on and what 2^16 has from 105615 on, both signs.
  EXPECT_EQ(num_seen, 2 * (111 * 128 + 49));
}

TEST(LargeAngle, WhatIsNoNumberHasNoAngle) {
  for (const float z : {INFINITY, -INFINITY, NAN}) EXPECT_TRUE(std::isnan(quartered(z).angle));
}

}  // namespace
}  // namespace gapless
