#include "server/sse.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

namespace gapless {
namespace {

TEST(Sse, OneAsciiLinePerEvent) {
  const boost::json::value value = {
      {"chunk", "a\n\"b\"\\ \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\x7F"}};
  const std::string event = sse_event(value);
  EXPECT_EQ(event,
            "data: {\"chunk\":\"a\\n\\\"b\\\"\\\\ \\u00e9 \\u20ac \\ud83d\\ude00\\u007f\"}\n\n");
  EXPECT_EQ(boost::json::parse(event.substr(6)), value);
}

TEST(Sse, EveryCodePointComesBack) {
  for (const std::uint32_t code :
       {0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFDu, 0xFFFFu, 0x10000u, 0x10FFFFu, 0x2028u}) {
    const int num_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    const unsigned first_byte = num_more == 1 ? 0xC0u : num_more == 2 ? 0xE0u : 0xF0u;
    std::string text(1, static_cast<char>(first_byte | code >> (6 * num_more)));
    for (int i = num_more - 1; i >= 0; --i) {
      text.push_back(static_cast<char>(0x80 | (code >> (6 * i) & 63)));
    }
    const std::string escaped = ascii_json("\"" + text + "\"");
    for (const char c : escaped) EXPECT_LT(static_cast<unsigned char>(c), 0x80);
    EXPECT_EQ(boost::json::parse(escaped).get_string(), text) << code;
  }
}

TEST(Sse, BrokenUtf8BecomesAReplacement) {
  EXPECT_EQ(ascii_json("\xFF"), "\\ufffd");
  EXPECT_EQ(ascii_json("\xE2\x82"), "\\ufffd");
  EXPECT_EQ(ascii_json("\xE2(\xA1"), "\\ufffd(\\ufffd");
  EXPECT_EQ(ascii_json("\xED\xA0\x80"), "\\ufffd\\ufffd\\ufffd");  // a surrogate is no character
}

}  // namespace
}  // namespace gapless
