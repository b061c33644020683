#include "device/cuda_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gapless {
namespace {

using testing::HasSubstr;

TEST(CudaSupportTest, OldGpusAreRefusedWithWhatIsNeeded) {
  const Status old = check_cuda_capability("Tesla T4", 75);
  EXPECT_EQ(old.code(), StatusCode::kUnavailable);
  EXPECT_THAT(old.to_string(),
              HasSubstr("Tesla T4 has compute capability 7.5; gapless needs 8.0 or newer"));
  EXPECT_FALSE(check_cuda_capability("GPU", 79).ok());
  EXPECT_TRUE(check_cuda_capability("NVIDIA A100", 80).ok());
  EXPECT_TRUE(check_cuda_capability("NVIDIA B200", 100).ok());
}

TEST(CudaSupportTest, OldDriversAndForeignGpusAreToldWhatToDo) {
  EXPECT_THAT(driver_too_old(12040, 13000),
              HasSubstr("the NVIDIA driver is for CUDA 12.4, this build needs one for 13.0"));
  EXPECT_THAT(driver_too_old(0, 13000), HasSubstr("there is no NVIDIA driver"));
  EXPECT_THAT(no_cuda_code("NVIDIA B200", 100),
              HasSubstr("no code for NVIDIA B200 (compute capability 10.0)"));
}

}  // namespace
}  // namespace gapless
