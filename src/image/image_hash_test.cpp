#include "image/image_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <thread>

namespace gapless {
namespace {

ContentHash hash_of(std::string_view text) {
  return hash_image_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(ImageHashTest, EveryByteAndTheLengthCount) {
  std::set<ContentHash> seen;
  std::string text(70, '\0');
  EXPECT_TRUE(seen.insert(hash_of(text)).second);
  for (std::size_t at = 0; at < text.size(); ++at) {
    text[at] = 1;
    EXPECT_TRUE(seen.insert(hash_of(text)).second) << "byte " << at;
    text[at] = 0;
  }
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_TRUE(seen.insert(hash_of(std::string_view(text).substr(0, length))).second) << length;
  }
}

TEST(ImageHashTest, AllThreadsHashAlike) {
  const std::string text(1000, 'a');
  const ContentHash here = hash_of(text);
  EXPECT_EQ(hash_of(text), here) << "the second one of a thread";
  std::thread([&] { EXPECT_EQ(hash_of(text), here); }).join();
}

std::string digits(const ContentHash& hash) {
  std::string text;
  for (const std::uint8_t byte : hash) text += std::to_string(byte) + " ";
  return text;
}

// Whoever could reckon hashes could make two files of one.
TEST(ImageHashDeathTest, EachProcessHasItsOwnKey) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that starts anew
  const auto tell_and_end = [] {
    std::fputs(digits(hash_of("a")).c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(tell_and_end(), ::testing::ExitedWithCode(0),
              ::testing::Not(::testing::HasSubstr(digits(hash_of("a")))));
}

}  // namespace
}  // namespace gapless
