#include "base/status.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

StatusOr<int> half(int n) {
  if (n % 2 != 0) return invalid_argument("{} is odd", n);
  return n / 2;
}

StatusOr<int> quarter(int n) {
  GAPLESS_ASSIGN_OR_RETURN(const int first, half(n));
  return half(first);
}

TEST(StatusTest, OkHasNoMessage) {
  EXPECT_TRUE(ok_status().ok());
  EXPECT_EQ(ok_status().to_string(), "ok");
}

TEST(StatusTest, ContextComesBeforeTheMessageOfAnError) {
  EXPECT_TRUE(ok_status().with_context("x.json").ok());
  EXPECT_EQ(invalid_argument("is wrong").with_context("x.json").message(), "x.json: is wrong");
}

TEST(StatusTest, ErrorNamesCodeAndThing) {
  const Status status = data_loss("{}: truncated", "x.png").with_context("request 7");
  EXPECT_EQ(status.to_string(), "data loss: request 7: x.png: truncated");
}

TEST(StatusTest, AssignOrReturnPassesValuesAndErrors) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
}

TEST(StatusDeathTest, ValueOfAnErrorStopsTheProcess) {
  EXPECT_DEATH({ (void)half(3).value(); }, "3 is odd");
}

TEST(StatusTest, AnErrorMayNameAField) {
  const Status status = invalid_field("top_p", "must be at most {}", 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "top_p must be at most 1");
  EXPECT_EQ(status.field(), "top_p");
  EXPECT_EQ(status.with_context("line 3").field(), "top_p") << "a context keeps it";
  EXPECT_EQ(status.with_context("line 3").message(), "line 3: top_p must be at most 1");
  EXPECT_EQ(status.with_field("messages").field(), "top_p") << "who knows best names it first";
  EXPECT_EQ(invalid_argument("bad").field(), "");
  EXPECT_EQ(invalid_argument("bad").with_field("messages").field(), "messages");
  EXPECT_EQ(ok_status().with_field("messages").field(), "");
}

}  // namespace
}  // namespace gapless
