#include "image/row_bands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gapless {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RowBandsTest, BandsBeginAtUnitsAndCoverAllRows) {
  const OnRows nobody;
  for (const int height : {1, 31, 32, 33, 100, 600, 601}) {
    for (const int num_bands : {1, 2, 3, 4}) {
      RowBands bands(height, num_bands, 32, nullptr, nobody);
      int row = 0;
      int taken = 0;
      while (const std::optional<int> band = bands.claim()) {
        EXPECT_EQ(*band, taken++);
        EXPECT_EQ(bands.first_row(*band), row);
        EXPECT_EQ(row % 32, 0);
        row = bands.end_row(*band);
        EXPECT_EQ(bands.is_last(*band), row == height);
      }
      EXPECT_EQ(row, height);
      EXPECT_LE(taken, num_bands);
    }
  }
}

TEST(RowBandsTest, TellsOfRowsThatAreFinalFromTheTop) {
  std::vector<int> told;
  const OnRows on_rows = [&told](const std::uint8_t*, int num_rows) { told.push_back(num_rows); };
  RowBands bands(90, 3, 10, nullptr, on_rows);  // 30 rows each
  for (int i = 0; i < 3; ++i) bands.claim();
  bands.publish(1, 60);
  bands.publish(2, 80);
  EXPECT_THAT(told, IsEmpty());
  bands.publish(0, 10);
  EXPECT_THAT(told, ElementsAre(10));
  bands.publish(0, 30);
  EXPECT_THAT(told, ElementsAre(10, 80));
  bands.publish(2, 90);
  EXPECT_THAT(told, ElementsAre(10, 80, 90));
}

TEST(RowBandsTest, OfSeveralFailuresTheUppermostIsTold) {
  const OnRows nobody;
  RowBands bands(90, 3, 10, nullptr, nobody);
  for (int i = 0; i < 2; ++i) bands.claim();
  EXPECT_FALSE(bands.failed());
  EXPECT_TRUE(bands.status().ok());
  bands.fail(1, invalid_argument("one"));
  bands.fail(0, invalid_argument("zero"));
  bands.fail(1, invalid_argument("one again"));
  EXPECT_TRUE(bands.failed());
  EXPECT_EQ(bands.status().message(), "zero");
  EXPECT_EQ(bands.claim(), std::nullopt) << "a broken picture needs no more rows";
}

}  // namespace
}  // namespace gapless
