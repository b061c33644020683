#include "base/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gapless {
namespace {

using ::testing::ElementsAre;

// Known answers published with Random123 (philox4x32, 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_THAT(philox4x32(0, 0, 0).words,
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  EXPECT_THAT(philox4x32(kOnes, kOnes, kOnes).words,
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(philox4x32(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu).words,
              ElementsAre(0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u));
}

}  // namespace
}  // namespace gapless
