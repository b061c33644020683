#include "server/router.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() {
    const auto name = [this](std::string text) {
      return [this, text](const std::shared_ptr<Exchange>&, std::string_view rest) {
        called = text + "(" + std::string(rest) + ")";
      };
    };
    router.add("GET", "/v1/models", name("list"));
    router.add("GET", "/v1/models/*", name("one"));
    router.add("GET", "/v1/models/exact", name("exact"));
    router.add("POST", "/v1/query", name("query"));
  }

  std::string call(std::string_view method, std::string_view path) {
    const Router::Match match = router.find(method, path);
    if (match.handler == nullptr) return match.allowed.empty() ? "404" : "405 " + match.allowed;
    (*match.handler)(nullptr, match.rest);
    return called;
  }

  Router router;
  std::string called;
};

TEST_F(RouterTest, ExactRoutesWinAndPatternsTakeTheRest) {
  EXPECT_EQ(call("GET", "/v1/models"), "list()");
  EXPECT_EQ(call("GET", "/v1/models/exact"), "exact()");
  EXPECT_EQ(call("GET", "/v1/models/a/b"), "one(a/b)");
  EXPECT_EQ(call("HEAD", "/v1/models"), "list()");
}

TEST_F(RouterTest, UnknownPathsAndMethods) {
  EXPECT_EQ(call("GET", "/"), "404");
  EXPECT_EQ(call("GET", "/v1/models/"), "404");
  EXPECT_EQ(call("GET", "/v1/modelsx"), "404");
  EXPECT_EQ(call("GET", "/v1/query"), "405 POST");
  EXPECT_EQ(call("POST", "/v1/models"), "405 GET, HEAD");
  EXPECT_EQ(call("get", "/v1/models"), "405 GET, HEAD");
  EXPECT_EQ(call("HEAD", "/v1/query"), "405 POST");
}

}  // namespace
}  // namespace gapless
