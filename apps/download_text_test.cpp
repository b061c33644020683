#include "download_text.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSeconds = 1000 * kMs;

TEST(DownloadText, OneLineThatIsWrittenOver) {
  DownloadText text("org/name/a.bin", 0, 1000, 0);
  int num_lines = 0;
  for (std::int64_t i = 1; i <= 1000; ++i) {
    const std::string printed = text.update(static_cast<std::uint64_t>(i), i * kMs);
    if (printed.empty()) continue;
    ++num_lines;
    EXPECT_TRUE(printed.starts_with("\r"));
    EXPECT_EQ(printed.find('\n'), std::string::npos);
  }
  EXPECT_EQ(num_lines, 10);
  EXPECT_EQ(text.clear(), "\r\x1b[K");
  EXPECT_EQ(text.clear(), "") << "there is nothing left to take back";
}

TEST(DownloadText, SpeedAndTimeLeftAreOfThisRun) {
  // 1 GB of 4 was there before; another 1 GB took 10 s.
  DownloadText text("f", 1'000'000'000, 4'000'000'000, 5 * kSeconds);
  EXPECT_EQ(text.update(2'000'000'000, 15 * kSeconds),
            "\rf [############            ] 2.00 GB of 4.00 GB, 100.0 MB/s, 20 s left\x1b[K");
  DownloadText nothing_yet("f", 500, 1000, 0);
  EXPECT_EQ(nothing_yet.update(500, kSeconds),
            "\rf [############            ] 500 B of 1.0 kB\x1b[K");
}

TEST(DownloadText, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(3'812), "3.8 kB");
  EXPECT_EQ(bytes_text(24'380'536), "24.4 MB");
  EXPECT_EQ(bytes_text(3'733'000'000), "3.73 GB");
}

}  // namespace
}  // namespace gapless
