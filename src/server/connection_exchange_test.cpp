// The exchange without a connection: what the writer finds after what a handler did.
#include "server/connection_exchange.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>

#include "server/connection.h"

namespace gapless {
namespace {

constexpr std::size_t kMaxOutboxBytes = 10;

class ConnectionExchangeTest : public ::testing::Test {
 protected:
  boost::asio::io_context io;  // what is posted stays there
  const std::shared_ptr<ConnectionExchange> exchange =
      std::make_shared<ConnectionExchange>(io.get_executor(), HttpRequest(), kMaxOutboxBytes);
};

TEST_F(ConnectionExchangeTest, WhatNobodyTakesIsBoundedTogether) {
  exchange->begin_stream({});
  EXPECT_TRUE(exchange->write("123456"));
  EXPECT_EQ(exchange->take().bytes, "123456");
  EXPECT_TRUE(exchange->write("123456"));
  EXPECT_TRUE(exchange->write("7890")) << "as much as there may be";
  EXPECT_FALSE(exchange->take().broken);
  exchange->write("123456");
  exchange->write("78901");
  const ConnectionExchange::Output output = exchange->take();
  EXPECT_TRUE(output.broken);
  EXPECT_LE(output.bytes.size(), kMaxOutboxBytes);
  EXPECT_FALSE(exchange->write("1")) << "nothing follows what is missing";
}

TEST_F(ConnectionExchangeTest, WhoAsksAfterTheClientWentIsToldAtOnce) {
  int num_aborts = 0;
  exchange->on_abort([&] { ++num_aborts; });
  EXPECT_EQ(num_aborts, 0);
  exchange->abort();
  EXPECT_EQ(num_aborts, 1);
  exchange->on_abort([&] { num_aborts += 10; });
  EXPECT_EQ(num_aborts, 11);
  exchange->abort();
  EXPECT_EQ(num_aborts, 11) << "once each";
}

TEST_F(ConnectionExchangeTest, AfterTheAnswerNobodyIsTold) {
  int num_aborts = 0;
  exchange->on_abort([&] { ++num_aborts; });
  exchange->respond({});
  exchange->finish();
  exchange->on_abort([&] { ++num_aborts; });
  exchange->abort();
  EXPECT_EQ(num_aborts, 0);
}

TEST_F(ConnectionExchangeTest, AStreamThatItsHandlerDropsIsBroken) {
  auto handle = exchange->handle();
  handle->begin_stream({});
  handle->write("some");
  handle.reset();
  const ConnectionExchange::Output output = exchange->take();
  EXPECT_TRUE(output.broken);
  EXPECT_FALSE(output.ended);
}

TEST_F(ConnectionExchangeTest, AStreamThatEndedIsWholeWhenItsHandlerGoes) {
  auto handle = exchange->handle();
  handle->begin_stream({});
  handle->write("some");
  handle->end_stream();
  handle.reset();
  const ConnectionExchange::Output output = exchange->take();
  EXPECT_FALSE(output.broken);
  EXPECT_TRUE(output.ended);
  EXPECT_EQ(output.bytes, "some");
}

TEST_F(ConnectionExchangeTest, ARequestThatItsHandlerDropsIsAnError) {
  exchange->handle().reset();
  const ConnectionExchange::Output output = exchange->take();
  ASSERT_TRUE(output.head);
  EXPECT_EQ(output.head->status, 500);
  EXPECT_TRUE(output.ended);
  EXPECT_FALSE(output.broken);
}

// Whoever asks for something small waits for one turn of all bodies at most, however many there are.
TEST(BodyTurnTest, ThoseWhoReadShareATurn) {
  ConnectionContext context;
  std::optional<BodyTurn> first(context);
  const std::size_t alone = first->bytes();
  EXPECT_GE(alone, std::size_t{64} << 10);
  {
    const BodyTurn second(context), third(context), fourth(context);
    EXPECT_EQ(first->bytes(), alone / 4);
    EXPECT_EQ(fourth.bytes(), alone / 4);
  }
  EXPECT_EQ(first->bytes(), alone) << "who has read its body takes no share";
  first.reset();
  EXPECT_EQ(BodyTurn(context).bytes(), alone);
}

}  // namespace
}  // namespace gapless
