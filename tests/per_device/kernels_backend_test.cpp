// Which backend this suite runs on: a run asked for CUDA that quietly used the CPU would prove
// nothing.
#include <string>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

TEST_F(KernelsTest, TheBackendIsTheOneOfTheDeviceAskedFor) {
  const bool cuda = test_device_kind() == DeviceKind::kCuda;
  EXPECT_EQ(std::string(kernels_->name()), cuda ? "cuda" : "cpu");
  EXPECT_EQ(dtype(), cuda || test_is_cpu_bf16() ? DType::kBF16 : DType::kF32);
}

}  // namespace
}  // namespace gapless
