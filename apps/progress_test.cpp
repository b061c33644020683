#include "progress.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

TEST(Progress, APipeGetsALineEveryTenSecondsAtMost) {
  ProgressText text("answered", 1000, 0, false, 0);
  int num_lines = 0;
  // 35 s, a thousand updates.
  for (std::int64_t i = 1; i <= 1000; ++i) {
    const std::string printed = text.update(i, i * 35 * kMillisecond);
    if (printed.empty()) continue;
    ++num_lines;
    EXPECT_EQ(printed.find('\r'), std::string::npos);
    EXPECT_EQ(printed.find('\n'), printed.size() - 1);
  }
  EXPECT_EQ(num_lines, 3);
  EXPECT_EQ(text.clear(), "");
}

TEST(Progress, ATerminalGetsOneLineThatIsWrittenOver) {
  ProgressText text("answered", 1000, 0, true, 0);
  int num_lines = 0;
  for (std::int64_t i = 1; i <= 1000; ++i) {
    const std::string printed = text.update(i, i * kMillisecond);
    if (printed.empty()) continue;
    ++num_lines;
    EXPECT_TRUE(printed.starts_with("\r"));
    EXPECT_EQ(printed.find('\n'), std::string::npos);
  }
  EXPECT_EQ(num_lines, 10);
  EXPECT_EQ(text.clear(), "\r\x1b[K");
  EXPECT_EQ(text.clear(), "") << "there is nothing left to take back";
}

TEST(Progress, TheTimeLeftFollowsFromWhatWasDoneInThisRun) {
  // 400 were there before: 100 in 20 s, so the other 500 take 100 s.
  ProgressText text("answered", 1000, 400, false, 5'000 * kMillisecond);
  EXPECT_EQ(text.update(500, 25'000 * kMillisecond), "500 of 1000 answered, 1:40 left\n");
  ProgressText nothing_yet("answered", 1000, 400, false, 0);
  EXPECT_EQ(nothing_yet.update(400, 10'000 * kMillisecond), "400 of 1000 answered\n");
  ProgressText all("MB written", 7, 0, false, 0);
  EXPECT_EQ(all.update(7, 10'000 * kMillisecond), "7 of 7 MB written\n");
}

TEST(Progress, Durations) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(59), "59 s");
  EXPECT_EQ(duration_text(60), "1:00");
  EXPECT_EQ(duration_text(3599), "59:59");
  EXPECT_EQ(duration_text(3600 + 62), "1:01:02");
}

}  // namespace
}  // namespace gapless
