#include "engine/smallest_first_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace gapless {
namespace {

using Queue = SmallestFirstQueue<std::string>;

void push(Queue& queue, std::string job, std::int64_t cost) {
  ASSERT_TRUE(queue.try_push(job, cost));
}

// Runs one job after the other, as long as one is there.
std::string order(Queue& queue, int count) {
  std::string names;
  for (int i = 0; i < count; ++i) names += queue.pop()->job();
  return names;
}

TEST(SmallestFirstQueueTest, TheSmallestFirstAndOfEqualOnesTheFirst) {
  Queue queue({.capacity = 8, .budget = 100, .max_overtaken = 8});
  push(queue, "a", 90);
  push(queue, "b", 10);
  push(queue, "c", 0);
  push(queue, "d", 10);
  EXPECT_EQ(order(queue, 4), "cbda");
}

TEST(SmallestFirstQueueTest, NobodyIsOvertakenMoreOftenThanTheBound) {
  Queue queue({.capacity = 100, .budget = 100, .max_overtaken = 3});
  push(queue, "L", 90);
  push(queue, "M", 50);
  for (int i = 0; i < 8; ++i) push(queue, "s", 1);
  // Three pass L; then it is due. M was passed as often, so it follows at once.
  EXPECT_EQ(order(queue, 10), "sssLMsssss");
}

// What came later and goes later overtakes nobody.
TEST(SmallestFirstQueueTest, WaitingForThoseInFrontIsNotBeingOvertaken) {
  Queue queue({.capacity = 100, .budget = 100, .max_overtaken = 2});
  for (int i = 0; i < 5; ++i) push(queue, "s", 1);
  push(queue, "L", 90);
  push(queue, "t", 1);
  EXPECT_EQ(order(queue, 7), "ssssstL");
}

TEST(SmallestFirstQueueTest, WhatRunsStaysWithinTheBudget) {
  Queue queue({.capacity = 8, .budget = 100, .max_overtaken = 8});
  push(queue, "a", 60);
  push(queue, "b", 50);
  push(queue, "c", 40);
  auto c = queue.pop();
  auto b = queue.pop();
  EXPECT_EQ(c->job() + b->job(), "cb");
  EXPECT_EQ(queue.cost_running(), 90);
  std::atomic<bool> got{false};
  std::thread waiter([&] {
    const auto a = queue.pop();
    got.store(true);
    EXPECT_LE(queue.cost_running(), 100);
  });
  c.reset();  // 50 run, 60 more would be too much
  EXPECT_FALSE(got.load());
  b.reset();
  waiter.join();
  EXPECT_TRUE(got.load());
  EXPECT_EQ(queue.cost_running(), 0);
}

// The budget fills up for it; what is free (cost 0) must wait as well.
TEST(SmallestFirstQueueTest, ADueJobThatDoesNotFitYetIsNotPassed) {
  Queue queue({.capacity = 8, .budget = 100, .max_overtaken = 1});
  push(queue, "a", 30);
  auto a = queue.pop();
  push(queue, "L", 80);
  push(queue, "s", 1);
  EXPECT_EQ(queue.pop()->job(), "s");
  push(queue, "t", 1);
  std::string names;
  std::thread waiter([&] {
    for (int i = 0; i < 2; ++i) names += queue.pop()->job();
  });
  a.reset();
  waiter.join();
  EXPECT_EQ(names, "Lt");
}

TEST(SmallestFirstQueueTest, JobsAreTakenOutAndTheEndWakesEverybody) {
  Queue queue({.capacity = 2, .budget = 10, .max_overtaken = 8});
  push(queue, "a", 10);
  push(queue, "b", 1);
  std::string more = "c";
  EXPECT_FALSE(queue.try_push(more, 1));
  EXPECT_EQ(more, "c");
  const auto taken = queue.take_if([](const std::string& job) { return job == "a"; });
  EXPECT_EQ(taken, std::vector<std::string>{"a"});
  EXPECT_EQ(queue.num_waiting(), 1u);
  EXPECT_EQ(queue.pop()->job(), "b");
  std::thread waiter([&] { EXPECT_FALSE(queue.pop().has_value()); });
  queue.close();
  waiter.join();
  EXPECT_FALSE(queue.try_push(more, 1));
}

// Every job is run once, never more at a time than the budget.
TEST(SmallestFirstQueueTest, ManyThreads) {
  constexpr int kJobs = 2000;
  SmallestFirstQueue<int> queue({.capacity = kJobs, .budget = 100, .max_overtaken = 4});
  std::vector<std::atomic<int>> runs(kJobs);
  std::atomic<std::int64_t> running{0};
  std::atomic<int> num_left{kJobs};
  std::atomic<bool> over_budget{false};
  std::vector<std::thread> workers;
  for (int w = 0; w < 4; ++w) {
    workers.emplace_back([&] {
      while (auto turn = queue.pop()) {
        if (running.fetch_add(turn->cost()) + turn->cost() > 100) over_budget.store(true);
        ++runs[static_cast<std::size_t>(turn->job())];
        running.fetch_sub(turn->cost());
        if (num_left.fetch_sub(1) == 1) queue.close();
      }
    });
  }
  for (int i = 0; i < kJobs; ++i) {
    int job = i;
    ASSERT_TRUE(queue.try_push(job, i * 37 % 101));
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_FALSE(over_budget.load());
  for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace gapless
