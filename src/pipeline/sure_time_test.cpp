#include "pipeline/sure_time.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

constexpr double kShare = SureTime::kSureShare;

SureTime::Work decode(int rows, double bytes) {
  return {StepKind::kDecode, rows, bytes};
}

TEST(SureTimeTest, NothingIsSureUntilEnoughWasSeen) {
  SureTime sure;
  for (int i = 0; i < SureTime::kRemembered; ++i) {
    EXPECT_EQ(sure.of(decode(1, 100)), 0) << i;
    sure.committed(decode(1, 100), 1000);
  }
  EXPECT_EQ(sure.of(decode(1, 100)), kShare * 1000);
  EXPECT_EQ(sure.of(decode(2, 100)), 0) << "another number of rows";
  EXPECT_EQ(sure.of({StepKind::kPrefill, 1, 100}), 0) << "another kind";
  EXPECT_EQ(sure.of({StepKind::kEncode, 1, 100}), 0);
}

TEST(SureTimeTest, TheQuickestOfTheLastCounts) {
  SureTime sure;
  for (int i = 0; i < SureTime::kRemembered; ++i) sure.committed(decode(3, 100), 1000);
  sure.committed(decode(3, 100), 700);
  EXPECT_EQ(sure.of(decode(3, 100)), kShare * 700);
  for (int i = 0; i < SureTime::kRemembered - 1; ++i) sure.committed(decode(3, 100), 1000);
  EXPECT_EQ(sure.of(decode(3, 100)), kShare * 700) << "still remembered";
  sure.committed(decode(3, 100), 1000);
  EXPECT_EQ(sure.of(decode(3, 100)), kShare * 1000);
}

TEST(SureTimeTest, WhatIsSmallerIsScaledDownAndWhatIsLargerIsNot) {
  SureTime sure;
  const auto prefill = [](double tokens) { return SureTime::Work{StepKind::kPrefill, 1, tokens}; };
  for (int i = 0; i < SureTime::kRemembered; ++i) sure.committed(prefill(800), 4000);
  EXPECT_EQ(sure.of(prefill(200)), kShare * 1000);
  EXPECT_EQ(sure.of(prefill(1600)), kShare * 4000);
  // Each by its own size.
  sure.committed(prefill(100), 700);
  EXPECT_EQ(sure.of(prefill(800)), kShare * 700);
}

TEST(SureTimeTest, AStepWithoutLiveRowsIsNeverSure) {
  SureTime sure;
  for (int i = 0; i < SureTime::kRemembered; ++i) sure.committed(decode(0, 100), 1000);
  EXPECT_EQ(sure.of(decode(0, 100)), 0);
  EXPECT_EQ(sure.of(decode(1, 100)), 0);
}

TEST(SureTimeTest, NumbersOfRowsThatAreAlikeShareAHistory) {
  SureTime sure;
  for (int i = 0; i < SureTime::kRemembered; ++i) sure.committed(decode(64 - i % 3, 100), 1000);
  for (const int rows : {33, 62, 64}) EXPECT_EQ(sure.of(decode(rows, 100)), kShare * 1000) << rows;
  EXPECT_EQ(sure.of(decode(48, 50)), kShare * 500);
  EXPECT_EQ(sure.of(decode(32, 100)), 0);
}

TEST(SureTimeTest, NumbersOfRowsFarApartHaveTheirOwnHistories) {
  SureTime sure;
  for (const int rows : {1, 2, kMaxSeats}) {
    for (int i = 0; i < SureTime::kRemembered; ++i) sure.committed(decode(rows, 100), 100 * rows);
  }
  for (const int rows : {1, 2, kMaxSeats}) {
    EXPECT_EQ(sure.of(decode(rows, 100)), static_cast<std::int64_t>(kShare * 100 * rows));
  }
}

}  // namespace
}  // namespace gapless
