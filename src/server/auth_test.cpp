#include "server/auth.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

bool admit(const ApiKeys& keys, std::string name, std::string value) {
  HttpHeaders headers;
  headers.add(std::move(name), std::move(value));
  return keys.admit(headers);
}

TEST(ApiKeys, WithoutKeysEverybodyComesIn) {
  EXPECT_TRUE(ApiKeys().admit({}));
  EXPECT_TRUE(admit(ApiKeys(), "X-Moondream-Auth", ""));
}

TEST(ApiKeys, EitherHeaderOpens) {
  const ApiKeys keys({"first", "second"});
  EXPECT_TRUE(admit(keys, "authorization", "Bearer first"));
  EXPECT_TRUE(admit(keys, "Authorization", "bearer  second "));
  EXPECT_TRUE(admit(keys, "x-moondream-auth", "second"));
}

TEST(ApiKeys, AnythingElseDoesNot) {
  const ApiKeys keys({"first", "aa"});
  EXPECT_FALSE(keys.admit({}));
  for (const char* key : {"", " ", "firs", "first1", "First", "a", "aaa", "aaaa", "firstfirst"}) {
    EXPECT_FALSE(admit(keys, "X-Moondream-Auth", key)) << key;
    EXPECT_FALSE(admit(keys, "Authorization", std::string("Bearer ") + key)) << key;
  }
  EXPECT_FALSE(admit(keys, "Authorization", "first"));
  EXPECT_FALSE(admit(keys, "Authorization", "Basic first"));
  EXPECT_FALSE(admit(keys, "Authorization", "Bearer"));
}

}  // namespace
}  // namespace gapless
