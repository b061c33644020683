#include "server/image_url.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

TEST(ImageUrl, DataUrisOfAnyTypeAndRawBase64) {
  for (const std::string_view url :
       {"data:image/jpeg;base64,Zm9v", "data:image/png;base64,Zm9v", "DATA:,Zm9v",
        "data:application/octet-stream;charset=x;base64,Zm9v", "data:;base64,\n Zm9v", "Zm9v",
        "  Zm9v\n"}) {
    EXPECT_EQ(*image_bytes_from_url(url), "foo") << url;
  }
}

TEST(ImageUrl, NothingIsFetched) {
  for (const std::string_view url : {"http://example.com/x.png", "HTTPS://example.com/x.png",
                                     "file:///etc/passwd", " http://169.254.169.254/"}) {
    const auto bytes = image_bytes_from_url(url);
    ASSERT_FALSE(bytes.ok()) << url;
    EXPECT_NE(bytes.status().message().find("does not fetch"), std::string::npos) << url;
  }
}

TEST(ImageUrl, EmptyAndBrokenOnesAreErrors) {
  for (const std::string_view url : {"", "  ", "data:image/png;base64", "data:image/png;base64,",
                                     "data:image/png;base64,@@@@", "gopher://x"}) {
    EXPECT_FALSE(image_bytes_from_url(url).ok()) << url;
  }
}

// The text is gone when the bytes are there, and when they cannot be had.
TEST(ImageUrl, TakingTheBytesFreesTheText) {
  boost::json::value good = "data:;base64,Zm9v";
  EXPECT_EQ(*take_image_bytes(good), "foo");
  EXPECT_TRUE(good.get_string().empty());
  boost::json::value bad(boost::json::string(1 << 20, '@'));
  EXPECT_FALSE(take_image_bytes(bad).ok());
  EXPECT_LT(bad.get_string().capacity(), 1000u);
}

}  // namespace
}  // namespace gapless
