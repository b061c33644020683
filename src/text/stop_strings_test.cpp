#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace gapless {
namespace {

TEST(StopStrings, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopStrings matcher({"###", "END"});
  EXPECT_EQ(matcher.push("abc#"), "abc");
  EXPECT_EQ(matcher.push("#d"), "##d");
  EXPECT_EQ(matcher.push("xE"), "x");
  EXPECT_EQ(matcher.push("EN"), "E");
  EXPECT_EQ(matcher.push("D tail"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStrings, FlushGivesTheRest) {
  StopStrings matcher({"stop"});
  EXPECT_EQ(matcher.push("do not sto"), "do not ");
  EXPECT_EQ(matcher.flush(), "sto");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStrings, EarliestEndWinsAndThenTheLongest) {
  StopStrings shorter({"abcd", "bc"});
  EXPECT_EQ(shorter.push("xabcd"), "xa");
  StopStrings longer({"c", "abc"});
  EXPECT_EQ(longer.push("xabc"), "x");
}

TEST(StopStrings, RepeatingPatterns) {
  StopStrings matcher({"aab"});
  EXPECT_EQ(matcher.push("aaaa"), "aa");
  EXPECT_EQ(matcher.push("b"), "");
  EXPECT_TRUE(matcher.stopped());
  // After "aabaaa" a 'b' leaves "aab": the border of a border.
  StopStrings nested({"aabaaac"});
  EXPECT_EQ(nested.push("xaabaaabaaac"), "xaaba");
  EXPECT_TRUE(nested.stopped());
}

// The reference: look at the whole text for the first end of any stop string.
std::string text_before_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopStrings, AnyCuttingGivesTheSameText) {
  std::mt19937 random(5);
  const auto random_text = [&](std::size_t length) {
    std::string text;
    while (text.size() < length) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t n = 1 + random() % 3; stops.size() < n;) {
      stops.push_back(random_text(1 + random() % 6));
    }
    const std::string text = random_text(random() % 40);
    StopStrings matcher(stops);
    std::string joined;
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t piece = 1 + random() % 7;
      joined += matcher.push(std::string_view(text).substr(i, piece));
      i += piece;
    }
    joined += matcher.flush();
    ASSERT_EQ(joined, text_before_stop(text, stops))
        << text << " " << testing::PrintToString(stops);
  }
}

TEST(StopStrings, NoneOrEmptyNeverStop) {
  StopStrings none({});
  EXPECT_EQ(none.push("free"), "free");
  StopStrings empty({""});
  EXPECT_EQ(empty.push("free"), "free");
}

}  // namespace
}  // namespace gapless
