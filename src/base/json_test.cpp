#include "base/json.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <cmath>
#include <limits>
#include <random>

namespace gapless {
namespace {

namespace json = boost::json;

TEST(JsonTextTest, NumbersArePlainDecimals) {
  EXPECT_EQ(json_text(0.312055), "0.312055");
  EXPECT_EQ(json_text(-0.5), "-0.5");
  EXPECT_EQ(json_text(1e-7), "0.0000001");
  EXPECT_EQ(json_text(1.0), "1.0");
  EXPECT_EQ(json_text(0.0), "0.0");
  EXPECT_EQ(json_text(-9999.0), "-9999.0");
  EXPECT_EQ(json_text(1e22), "10000000000000000000000.0");
  EXPECT_EQ(json_text(1), "1");
  EXPECT_EQ(json_text(std::numeric_limits<std::uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(json_text(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
}

TEST(JsonTextTest, NumbersReadBackAsTheyWere) {
  std::mt19937_64 random(7);
  std::vector<double> numbers = {std::numeric_limits<double>::max(),
                                 std::numeric_limits<double>::min(),
                                 -std::numeric_limits<double>::denorm_min(), 0.1, 1.0 / 3};
  for (int i = 0; i < 2000; ++i) {
    numbers.push_back(
        std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 150));
  }
  for (const double number : numbers) {
    const std::string text = json_text(number);
    EXPECT_EQ(text.find_first_of("eE"), std::string::npos) << text;
    EXPECT_EQ(std::strtod(text.c_str(), nullptr), number) << text;
  }
}

TEST(JsonTextTest, FloatsAreAsShortAsTheyWere) {
  for (const auto& [number, text] : {std::pair(0.1f, "0.1"),
                                     {-0.3172531f, "-0.3172531"},
                                     {-4.671252e-06f, "-0.000004671252"},
                                     {-9999.0f, "-9999.0"}}) {
    EXPECT_EQ(json_text(short_double(number)), text);
    EXPECT_EQ(static_cast<float>(short_double(number)), number);
  }
  EXPECT_EQ(json_text(short_double(std::numeric_limits<float>::infinity())), "null");
}

TEST(JsonTextTest, WhatIsNoNumberIsNull) {
  EXPECT_EQ(json_text(std::nan("")), "null");
  EXPECT_EQ(json_text(json::array{std::numeric_limits<double>::infinity()}), "[null]");
}

TEST(JsonTextTest, TheRestIsJson) {
  const std::string_view text =
      R"({"a":[],"b":{},"c":[1,"x\"\n\u0001",true,null,{"d":[[2.5],-3]}],"":"","e\"":false})";
  EXPECT_EQ(json_text(json::parse(text)), text);
}

}  // namespace
}  // namespace gapless
