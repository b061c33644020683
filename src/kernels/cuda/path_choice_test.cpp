#include "kernels/cuda/path_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gapless::cuda {
namespace {

CudaAttributes device(int capability, int shared_kb) {
  return {.capability = capability, .shared_bytes = shared_kb << 10, .num_multiprocessors = 100};
}

std::vector<BuiltPath> all_built() {
  return {{kPath80, true}, {kPath89, true}, {kPath90, true}, {kPath90a, true}};
}

// "path shared KB", or the error.
std::string chosen(const CudaAttributes& attributes, const std::vector<BuiltPath>& built,
                   std::string_view wanted = "") {
  const StatusOr<PathChoice> choice = choose_path(attributes, built, wanted);
  if (!choice.ok()) return choice.status().to_string();
  return std::string(choice->path.name) + " " + std::to_string(choice->shared_bytes >> 10);
}

TEST(PathChoiceTest, EveryGenerationHasItsPath) {
  EXPECT_EQ(chosen(device(80, 163), all_built()), "8.0 163");
  EXPECT_EQ(chosen(device(86, 99), all_built()), "8.0 99");
  EXPECT_EQ(chosen(device(87, 163), all_built()), "8.0 163");
  EXPECT_EQ(chosen(device(89, 99), all_built()), "8.9 99");
  EXPECT_EQ(chosen(device(90, 227), all_built()), "9.0a 227");
  EXPECT_EQ(chosen(device(100, 227), all_built()), "9.0 227");
  EXPECT_EQ(chosen(device(103, 227), all_built()), "9.0 227");
  EXPECT_EQ(chosen(device(120, 99), all_built()), "9.0 99");
  EXPECT_EQ(chosen(device(121, 99), all_built()), "9.0 99");
  EXPECT_EQ(chosen(device(130, 256), all_built()), "9.0 256");
}

TEST(PathChoiceTest, ALowerPathIsChosenWhereItIsAskedFor) {
  const CudaAttributes hopper = device(90, 227);
  EXPECT_EQ(chosen(hopper, all_built(), "8.0"), "8.0 163");
  EXPECT_EQ(chosen(hopper, all_built(), "8.6"), "8.0 99");
  EXPECT_EQ(chosen(hopper, all_built(), "8.9"), "8.9 99");
  EXPECT_EQ(chosen(hopper, all_built(), "9.0"), "9.0 227");
  EXPECT_EQ(chosen(hopper, all_built(), "12.0"), "9.0 99");
  EXPECT_EQ(chosen(hopper, all_built(), "9.0a"), "9.0a 227");
  // Never more than there is.
  EXPECT_EQ(chosen(device(86, 99), all_built(), "8.0"), "8.0 99");
}

TEST(PathChoiceTest, WhatIsNotBuiltFallsToTheNextLowerPath) {
  const CudaAttributes hopper = device(90, 227);
  EXPECT_EQ(chosen(hopper, {{kPath80, true}, {kPath90a, false}}), "8.0 227");
  EXPECT_EQ(chosen(hopper, {{kPath80, true}, {kPath90, true}}), "9.0 227");
  EXPECT_EQ(chosen(device(100, 227), {{kPath90a, true}, {kPath80, true}}), "8.0 227");
}

TEST(PathChoiceTest, WhatCannotRunIsRefusedWithWhatIsNeeded) {
  EXPECT_THAT(chosen(device(75, 64), all_built()), testing::HasSubstr("needs 8.0 or newer"));
  const std::string none = chosen(device(100, 227), {{kPath90a, true}});
  EXPECT_THAT(none, testing::HasSubstr("compute capability 10.0 (it has paths 9.0a)"));
  EXPECT_THAT(none, testing::HasSubstr("GAPLESS_CUDA_ARCHITECTURES=all"));
  const std::string missing = chosen(device(90, 227), {{kPath90a, true}}, "8.0");
  EXPECT_THAT(missing, testing::HasSubstr("no kernels of path 8.0"));
  // A path that is wanted is never another one.
  EXPECT_THAT(chosen(device(86, 99), all_built(), "9.0"), testing::HasSubstr("of path 9.0"));
  EXPECT_THAT(chosen(device(90, 227), all_built(), "RTX 3090"),
              testing::HasSubstr("GAPLESS_CUDA_PATH=RTX 3090 is none of"));
}

// Registers and the ring of 9.0a are constants of its code.
TEST(PathChoiceTest, TheFastPathIsNotRunWithLessMemoryThanItReckonsWith) {
  EXPECT_EQ(chosen(device(90, 200), all_built()), "9.0 200");
}

}  // namespace
}  // namespace gapless::cuda
