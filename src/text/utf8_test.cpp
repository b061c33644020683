#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "text/byte_level.h"

namespace gapless {
namespace {

TEST(Utf8, AcceptsTheEdgesOfEveryLength) {
  for (const std::string& text :
       {std::string("\0", 1), std::string("\x7F"), std::string("\xC2\x80"), std::string("\xDF\xBF"),
        std::string("\xE0\xA0\x80"), std::string("\xED\x9F\xBF"), std::string("\xEE\x80\x80"),
        std::string("\xF0\x90\x80\x80"), std::string("\xF4\x8F\xBF\xBF")}) {
    EXPECT_EQ(find_invalid_utf8("a" + text + "b"), std::nullopt);
  }
}

TEST(Utf8, RefusesOverlongSurrogateTooLargeAndStray) {
  for (const std::string_view text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF", "\xE2\x82", "\xE2\x82z"}) {
    EXPECT_EQ(find_invalid_utf8("ab" + std::string(text)), 2u) << testing::PrintToString(text);
  }
}

TEST(Utf8, RepairReplacesEachMaximalSubpartOnce) {
  // The example of the Unicode Standard, table 3-8.
  EXPECT_EQ(repair_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(repair_utf8("\xE2\x82"), "\uFFFD");
}

TEST(Utf8, EscapeSpellsEveryInvalidByte) {
  EXPECT_EQ(escape_invalid_utf8("a\u2605\n\\"), "a\u2605\n\\");
  EXPECT_EQ(escape_invalid_utf8(" \xF0\x9F\x98"), " \\xf0\\x9f\\x98");
  EXPECT_EQ(escape_invalid_utf8("\x80z\xC3"), "\\x80z\\xc3");
  EXPECT_EQ(escape_invalid_utf8(""), "");
}

TEST(ByteLevel, EveryByteComesBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(from_byte_level(to_byte_level(all)), all);
  EXPECT_EQ(to_byte_level(" a\n"), "ĠaĊ");
  EXPECT_EQ(from_byte_level("a b"), std::nullopt);  // a bare space stands for no byte
}

}  // namespace
}  // namespace gapless
