#include "engine/crop_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <latch>
#include <thread>
#include <vector>

#include "base/limits.h"

namespace gapless {
namespace {

constexpr int kCapacity = kMaxTilesPerImage + 1;

class CropPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = open_device("cpu").value();
    pool_ = CropPool::create(*device_, kCapacity, 16).value();
  }

  // A picture of so many crops, remembered and given back.
  void pass_through(std::uint8_t name, int count) {
    const auto lease = pool_->acquire(count);
    for (int i = 0; i < count; ++i) std::memset(lease->crop_pinned(i), name + i, 16);
    pool_->remember(hash(name), *lease, 0, count, {1, count});
  }
  static ContentHash hash(std::uint8_t name) {
    ContentHash hash{};
    hash.fill(name);
    return hash;
  }
  bool knows(std::uint8_t name) { return pool_->find(hash(name)).has_value(); }

  std::unique_ptr<Device> device_;
  std::shared_ptr<CropPool> pool_;
};

TEST_F(CropPoolTest, BuffersAreDistinctAndComeBackWithTheirLease) {
  auto some = pool_->acquire(3);
  auto all_others = pool_->acquire(kCapacity - 3);
  EXPECT_EQ(pool_->num_free(), 0);
  EXPECT_NE(some->crop_pinned(0), some->crop_pinned(1));
  for (int i = 0; i < all_others->size(); ++i) {
    EXPECT_NE(some->crop_pinned(2), all_others->crop_pinned(i));
  }
  some.reset();
  EXPECT_EQ(pool_->num_free(), 3);
  all_others.reset();
  EXPECT_EQ(pool_->num_free(), kCapacity);
}

TEST_F(CropPoolTest, AWaiterIsServedWhenBuffersComeBack) {
  auto held = pool_->acquire(kCapacity);
  std::thread waiter([&] { EXPECT_EQ(pool_->acquire(2)->size(), 2); });
  held.reset();
  waiter.join();
  EXPECT_EQ(pool_->num_free(), kCapacity);
}

// A request for many buffers is not overtaken by small ones that would fit already.
TEST_F(CropPoolTest, FirstComeFirstServed) {
  auto held = pool_->acquire(kCapacity - 1);
  std::atomic<bool> large_served{false};
  std::thread large([&] {
    const auto lease = pool_->acquire(kCapacity);
    large_served = true;
  });
  while (pool_->num_waiting() == 0) std::this_thread::yield();
  std::atomic<bool> small_served{false};
  std::thread small([&] {
    const auto lease = pool_->acquire(1);
    EXPECT_TRUE(large_served);
    small_served = true;
  });
  while (pool_->num_waiting() == 1 && !small_served) std::this_thread::yield();
  held.reset();
  large.join();
  small.join();
}

TEST_F(CropPoolTest, FreeBuffersKeepTheirPicture) {
  pass_through(10, 3);
  EXPECT_EQ(pool_->num_free(), kCapacity);
  {
    const auto picture = pool_->find(hash(10));
    ASSERT_TRUE(picture);
    EXPECT_EQ(picture->tiling.rows, 1);
    EXPECT_EQ(picture->tiling.cols, 3);
    ASSERT_EQ(picture->crops->size(), 3);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(*picture->crops->crop_pinned(i), 10 + i);
    EXPECT_EQ(pool_->num_free(), kCapacity - 3);
    EXPECT_EQ(pool_->acquire(kCapacity - 3)->size(), kCapacity - 3) << "none of the picture's";
    for (int i = 0; i < 3; ++i) EXPECT_EQ(*picture->crops->crop_pinned(i), 10 + i);
  }
  EXPECT_EQ(pool_->num_free(), kCapacity);
  EXPECT_TRUE(knows(10));
  EXPECT_FALSE(knows(11));
}

TEST_F(CropPoolTest, OneOfSeveralPicturesOfALeaseIsFoundAlone) {
  {
    const auto both = pool_->acquire(5);
    for (int i = 0; i < 5; ++i) std::memset(both->crop_pinned(i), 50 + i, 16);
    pool_->remember(hash(1), *both, 0, 2, {1, 1});
    pool_->remember(hash(2), *both, 2, 3, {1, 2});
  }
  const auto second = pool_->find(hash(2));
  ASSERT_TRUE(second);
  ASSERT_EQ(second->crops->size(), 3);
  EXPECT_EQ(*second->crops->crop_pinned(0), 52);
  EXPECT_EQ(pool_->num_free(), kCapacity - 3);
}

TEST_F(CropPoolTest, ABufferThatIsTakenTakesItsPictureAway) {
  pass_through(10, 3);
  pass_through(20, kCapacity - 4);
  EXPECT_TRUE(knows(10));  // and is now the last in line
  EXPECT_TRUE(knows(20));
  pass_through(30, 2);  // the one that was never used, and one of picture 10 or 20
  EXPECT_NE(knows(10), knows(20));
  pass_through(40, kCapacity);
  EXPECT_FALSE(knows(10));
  EXPECT_FALSE(knows(20));
  EXPECT_FALSE(knows(30));
  // What is left of a forgotten picture does not speak for it when it comes again.
  pass_through(30, 2);
  EXPECT_FALSE(knows(40));
  pass_through(20, kCapacity - 2);
  EXPECT_TRUE(knows(30));
  EXPECT_TRUE(knows(20));
}

TEST_F(CropPoolTest, TheLongestUnusedPictureGoesFirst) {
  pass_through(10, 30);
  pass_through(20, 30);
  EXPECT_TRUE(knows(10));  // used once more
  pass_through(30, kCapacity - 60 + 1);
  EXPECT_TRUE(knows(10));
  EXPECT_FALSE(knows(20));
}

// Pictures that come once, in any number, leave it where it is.
TEST_F(CropPoolTest, APictureThatWasFoundIsTakenLast) {
  pass_through(10, 3);
  pass_through(20, 3);
  EXPECT_TRUE(knows(10));
  for (std::uint8_t name = 30; name < 60; ++name) pass_through(name, 10);
  EXPECT_TRUE(knows(10));
  EXPECT_FALSE(knows(20));
  pass_through(60, kCapacity - 2);
  EXPECT_FALSE(knows(10)) << "no others were left";
}

TEST_F(CropPoolTest, WhoFindsAPictureThatIsInUseSharesIt) {
  auto first = pool_->acquire(4);
  pool_->remember(hash(1), *first, 0, 4, {1, 3});
  pool_->remember(hash(1), *pool_->acquire(4), 0, 4, {1, 3});  // two workers at once
  auto second = pool_->find(hash(1));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->crops->crop_pinned(0), first->crop_pinned(0));
  EXPECT_EQ(pool_->num_free(), kCapacity - 4);
  first.reset();
  EXPECT_EQ(pool_->num_free(), kCapacity - 4);
  second.reset();
  EXPECT_EQ(pool_->num_free(), kCapacity);
}

// The second one's buffers hold the picture too, but do not speak for it.
TEST_F(CropPoolTest, OfTwoWorkersThatPrepareAPictureTheFirstOneCounts) {
  auto first = pool_->acquire(2);
  auto second = pool_->acquire(2);
  pool_->remember(hash(1), *first, 0, 2, {1, 1});
  pool_->remember(hash(1), *second, 0, 2, {1, 1});
  second.reset();
  first.reset();
  const auto never_used = pool_->acquire(kCapacity - 4);
  auto of_second = pool_->acquire(2);
  EXPECT_TRUE(knows(1));
  of_second.reset();
  EXPECT_EQ(pool_->acquire(4)->size(), 4);
  EXPECT_FALSE(knows(1));
}

TEST_F(CropPoolTest, FindingOvertakesAWaiterSoManyTimesOnly) {
  pass_through(10, 3);
  auto held = pool_->acquire(1);
  for (int round = 0; round < 2; ++round) {
    // With these three and the one that is held too few are free.
    auto more = pool_->find(hash(10));
    std::thread waiter([&] { EXPECT_EQ(pool_->acquire(kCapacity - 3)->size(), kCapacity - 3); });
    while (pool_->num_waiting() == 0) std::this_thread::yield();
    for (int i = 0; i < kMaxOvertaken; ++i) EXPECT_TRUE(knows(10)) << i;
    EXPECT_FALSE(knows(10));
    more.reset();
    held.reset();
    waiter.join();
    held = pool_->acquire(1);
    pass_through(10, 3);
  }
}

// Who gives up waiting makes room for the next one, whose turn it is then.
TEST_F(CropPoolTest, WhoIsStoppedWaitsNoLongerAndHoldsNobodyUp) {
  auto held = pool_->acquire(kCapacity - 1);
  std::stop_source stop;
  std::thread stopped([&] { EXPECT_EQ(pool_->acquire(kCapacity, stop.get_token()), nullptr); });
  while (pool_->num_waiting() < 1) std::this_thread::yield();
  std::thread next([&] { EXPECT_EQ(pool_->acquire(1)->size(), 1); });
  while (pool_->num_waiting() < 2) std::this_thread::yield();
  (void)stop.request_stop();
  stopped.join();
  next.join();
  EXPECT_EQ(pool_->num_waiting(), 0);
  // There is enough for both again.
  EXPECT_NE(pool_->acquire(1, stop.get_token()), nullptr) << "what is free needs no wait";
}

// The deadlock guard of those below: generous, and never waited for where all is well.
constexpr std::chrono::seconds kGuard{20};

// A release wakes whoever is first in line, also when somebody else would be woken first.
TEST_F(CropPoolTest, WhoWaitsForTwoIsServedByTwoReleasesOfOne) {
  for (int round = 0; round < 50; ++round) {
    auto rest = pool_->acquire(kCapacity - 2);
    auto one = pool_->acquire(1);
    auto other = pool_->acquire(1);
    auto first = std::async(std::launch::async, [&] { return pool_->acquire(2) != nullptr; });
    while (pool_->num_waiting() < 1) std::this_thread::yield();
    auto second = std::async(std::launch::async, [&] { return pool_->acquire(1) != nullptr; });
    while (pool_->num_waiting() < 2) std::this_thread::yield();
    one.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // who was woken sleeps again
    other.reset();
    const bool served = first.wait_for(kGuard) == std::future_status::ready &&
                        second.wait_for(kGuard) == std::future_status::ready;
    if (!served) pool_->close();
    ASSERT_TRUE(served) << "round " << round;
  }
}

// All buffers come back at once: each of those in line is served while those before it still hold.
TEST_F(CropPoolTest, OneReleaseServesAllInLine) {
  constexpr int kWaiters = 6;
  for (int round = 0; round < 100; ++round) {
    auto all = pool_->acquire(kCapacity);
    std::latch let_go(1);
    std::latch served(kWaiters);
    std::vector<std::thread> waiters;
    for (int i = 0; i < kWaiters; ++i) {
      waiters.emplace_back([&] {
        const auto lease = pool_->acquire(1);
        served.count_down();
        let_go.wait();
      });
    }
    while (pool_->num_waiting() < kWaiters) std::this_thread::yield();
    all.reset();
    const auto until = std::chrono::steady_clock::now() + kGuard;
    while (!served.try_wait() && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    const bool all_served = served.try_wait();
    let_go.count_down();
    if (!all_served) pool_->close();
    for (std::thread& waiter : waiters) waiter.join();
    ASSERT_TRUE(all_served) << "round " << round;
  }
}

TEST_F(CropPoolTest, ClosingSendsWaitersAway) {
  auto held = pool_->acquire(kCapacity);
  std::thread waiter([&] { EXPECT_EQ(pool_->acquire(1), nullptr); });
  while (pool_->num_waiting() == 0) std::this_thread::yield();
  pool_->close();
  waiter.join();
  EXPECT_EQ(pool_->acquire(1), nullptr);
}

}  // namespace
}  // namespace gapless
