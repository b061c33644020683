#include "device/limited_device.h"

#include <gtest/gtest.h>

#include "device/dry_device.h"

namespace gapless {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

TEST(LimitedDeviceTest, GivesNoMoreThanItsLimitAndTakesBack) {
  const auto device = limit_device_memory(open_device("cpu").value(), 3 * kMebibyte);
  EXPECT_EQ(device->info()->free_memory_bytes, 3 * kMebibyte);
  {
    const Buffer first = device->allocate(2 * kMebibyte).value();
    static_cast<char*>(first.data())[2 * kMebibyte - 1] = 1;
    EXPECT_EQ(device->info()->free_memory_bytes, kMebibyte);
    EXPECT_EQ(device->allocate(kMebibyte + 1).status().code(), StatusCode::kResourceExhausted);
    const Buffer second = device->allocate(kMebibyte).value();
    EXPECT_EQ(device->info()->free_memory_bytes, 0u);
    EXPECT_EQ(device->allocate(0)->data(), nullptr);
  }
  EXPECT_EQ(device->info()->free_memory_bytes, 3 * kMebibyte);
  EXPECT_TRUE(device->allocate(3 * kMebibyte).ok());
  EXPECT_TRUE(device->allocate_pinned(4 * kMebibyte).ok()) << "the host's memory";
}

TEST(LimitedDeviceTest, ARefusalOfTheDeviceItselfCountsForNothing) {
  const auto device = limit_device_memory(
      make_dry_device({.name = "small", .free_memory_bytes = kMebibyte}), 2 * kMebibyte);
  EXPECT_EQ(device->info()->free_memory_bytes, kMebibyte) << "the smaller of both";
  EXPECT_FALSE(device->allocate(kMebibyte + 1).ok());
  const Buffer all = device->allocate(kMebibyte).value();
  EXPECT_EQ(device->info()->free_memory_bytes, 0u);
}

TEST(DryDeviceTest, CountsWhatIsThereNow) {
  const auto device = make_dry_device({.name = "dry", .free_memory_bytes = std::size_t{1} << 40});
  const Buffer kept = device->allocate(1000).value();
  EXPECT_EQ(device->allocated_bytes(), 1024u) << "in whole units of 256";
  {
    const Buffer large = device->allocate(std::size_t{1} << 39).value();
    EXPECT_NE(large.data(), kept.data());
    EXPECT_EQ(device->info()->free_memory_bytes, (std::size_t{1} << 39) - 1024);
    EXPECT_EQ(device->allocate(std::size_t{1} << 39).status().code(),
              StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(device->allocated_bytes(), 1024u);
}

}  // namespace
}  // namespace gapless
