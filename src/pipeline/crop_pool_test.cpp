#include "pipeline/crop_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

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
