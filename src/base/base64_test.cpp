#include "base/base64.h"

#include <gtest/gtest.h>

#include <random>

namespace gapless {
namespace {

std::string encode(std::string_view bytes) {
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned bits = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += k <= count ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

TEST(Base64, KnownVectors) {
  // RFC 4648, section 10.
  EXPECT_EQ(*decode_base64(""), "");
  EXPECT_EQ(*decode_base64("Zg=="), "f");
  EXPECT_EQ(*decode_base64("Zm8="), "fo");
  EXPECT_EQ(*decode_base64("Zm9v"), "foo");
  EXPECT_EQ(*decode_base64("Zm9vYmFy"), "foobar");
  EXPECT_EQ(*decode_base64("+/+/"), "\xFB\xFF\xBF");
}

TEST(Base64, MissingPaddingAndWhitespaceAreAccepted) {
  EXPECT_EQ(*decode_base64("Zg"), "f");
  EXPECT_EQ(*decode_base64("Zm8"), "fo");
  EXPECT_EQ(*decode_base64("Zg="), "f");
  EXPECT_EQ(*decode_base64(" Zm9v\r\nYm\tFy \n"), "foobar");
  EXPECT_EQ(*decode_base64("Zm8 = \n"), "fo");
}

TEST(Base64, ForeignCharactersAreRefusedWhereverTheyStand) {
  const std::string good = encode(std::string(130, 'x'));
  for (const char c : {'*', '-', '_', '\0', '\x80', '\xC1', '\xFF', '"', '\\', '%'}) {
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = c;
      EXPECT_FALSE(decode_base64(bad).ok()) << static_cast<int>(c) << " at " << at;
    }
  }
  EXPECT_NE(decode_base64("Zm9v*mFy").status().message().find("4"), std::string::npos);
}

TEST(Base64, PaddingBelongsAtTheEnd) {
  for (const std::string_view text :
       {"Zg==Zg==", "Z", "Zm9vY", "=", "====", "Zm9v=", "Zg===", "Zm8==", "Z=", "Zm=8"}) {
    EXPECT_FALSE(decode_base64(text).ok()) << text;
  }
}

TEST(Base64, RandomBytesComeBackWithWhitespaceAnywhere) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::string text = encode(bytes);
    EXPECT_EQ(*decode_base64(text), bytes);
    for (int i = 0; i < 5; ++i) text.insert(random() % (text.size() + 1), 1, '\n');
    EXPECT_EQ(*decode_base64(text), bytes);
  }
}

TEST(Base64, Encodes) {
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foo"), "Zm9v");
  EXPECT_EQ(encode_base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encode_base64("\xFF\xFE\xFD"), "//79");
}

}  // namespace
}  // namespace gapless
