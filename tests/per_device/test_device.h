// The device that a per-device test runs on: GAPLESS_TEST_DEVICE, or the CPU in float32. cpu-bf16 is the CPU
// in bfloat16.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "device/device.h"
#include "kernels/compute.h"

namespace gapless {

inline std::string test_device_setting() {
  const char* const name = std::getenv("GAPLESS_TEST_DEVICE");
  return name == nullptr ? "cpu" : name;
}

inline bool test_is_cpu_bf16() {
  return test_device_setting() == "cpu-bf16";
}

// As open_device() takes it.
inline std::string test_device_name() {
  return test_is_cpu_bf16() ? "cpu" : test_device_setting();
}

inline Compute test_compute() {
  return test_is_cpu_bf16() ? Compute::kBFloat16 : Compute::kPortable;
}

inline DeviceKind test_device_kind() {
  return test_device_name().starts_with("cuda") ? DeviceKind::kCuda : DeviceKind::kCpu;
}

// Opens the device before each test, and fails the test, never skips it, when that cannot be done.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    StatusOr<std::unique_ptr<Device>> opened = open_device(test_device_name());
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    device_ = std::move(opened).value();
    ASSERT_EQ(device_->kind(), test_device_kind());
  }

  std::unique_ptr<Device> device_;
};

}  // namespace gapless

#define GAPLESS_ASSERT_OK(expression)                                             \
  do {                                                                            \
    const ::gapless::Status gapless_assert_status = (expression);                 \
    ASSERT_TRUE(gapless_assert_status.ok()) << gapless_assert_status.to_string(); \
  } while (false)
