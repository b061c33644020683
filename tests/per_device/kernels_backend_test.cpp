// Which backend this suite runs on: a run asked for CUDA that quietly used the CPU would prove
// nothing.
#include <cstdlib>
#include <string>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

TEST_F(KernelsTest, TheBackendIsTheOneOfTheDeviceAskedFor) {
  const bool cuda = test_device_kind() == DeviceKind::kCuda;
  EXPECT_EQ(std::string(kernels_->name()), cuda ? "cuda" : "cpu");
  EXPECT_EQ(dtype(), cuda || test_is_cpu_bf16() ? DType::kBF16 : DType::kF32);
}

// A lower path than the GPU's own runs where it is asked for, or none.
TEST_F(KernelsTest, ThePathIsTheOneAskedFor) {
  const char* wanted = std::getenv("GAPLESS_CUDA_PATH");
  if (test_device_kind() != DeviceKind::kCuda) {
    EXPECT_EQ(std::string(kernels_->path()), "");
  } else if (wanted != nullptr) {
    const std::string value = wanted;
    EXPECT_EQ(std::string(kernels_->path()), value == "8.6"    ? "8.0"
                                             : value == "12.0" ? "9.0"
                                                               : value);
  } else {
    EXPECT_NE(std::string(kernels_->path()), "");
  }
}

}  // namespace
}  // namespace gapless
