#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

namespace gapless {
namespace {

TEST(BoundedQueueTest, RefusesWhenFull) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_TRUE(queue.try_push(3));
}

TEST(BoundedQueueTest, CloseDrainsThenEnds) {
  BoundedQueue<int> queue(4);
  ASSERT_TRUE(queue.try_push(1));
  queue.close();
  EXPECT_FALSE(queue.try_push(2));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueueTest, EveryConsumerThatWaitsHearsOfTheEnd) {
  for (int round = 0; round < 30; ++round) {
    BoundedQueue<int> queue(1);
    std::vector<std::future<std::optional<int>>> consumers;
    for (int i = 0; i < 4; ++i) {
      consumers.push_back(std::async(std::launch::async, [&] { return queue.pop(); }));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // they wait by now
    queue.close();
    for (auto& consumer : consumers) {
      const bool heard = consumer.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
      while (consumer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
        queue.close();  // so that the test ends
      }
      ASSERT_TRUE(heard) << "round " << round;
      EXPECT_EQ(consumer.get(), std::nullopt);
    }
  }
}

TEST(BoundedQueueTest, EveryItemArrivesOnce) {
  constexpr int kItems = 1000;
  BoundedQueue<int> queue(3);
  std::vector<int> seen(2 * kItems, 0);
  std::thread first([&] {
    for (int i = 0; i < kItems; ++i) ASSERT_TRUE(queue.push(i));
  });
  std::thread second([&] {
    for (int i = 0; i < kItems; ++i) ASSERT_TRUE(queue.push(kItems + i));
  });
  for (int i = 0; i < 2 * kItems; ++i) seen[static_cast<std::size_t>(*queue.pop())]++;
  first.join();
  second.join();
  for (const int count : seen) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace gapless
