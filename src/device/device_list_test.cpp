#include "device/device_list.h"

#include <gmock/gmock.h>

#include "base/limits.h"

namespace gapless {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> labels(std::string_view text, int num_gpus = 0) {
  const auto devices = parse_device_list(text, [=] { return num_gpus; });
  EXPECT_TRUE(devices.ok()) << devices.status().to_string();
  std::vector<std::string> result;
  if (!devices.ok()) return result;
  for (const NamedDevice& device : *devices) result.push_back(device.spec + " " + device.label);
  return result;
}

Status error_of(std::string_view text, int num_gpus = 0) {
  return parse_device_list(text, [=] { return num_gpus; }).status();
}

TEST(DeviceList, OneDevice) {
  EXPECT_THAT(labels("cpu"), ElementsAre("cpu cpu"));
  EXPECT_THAT(labels("cuda"), ElementsAre("cuda:0 cuda:0"));
  EXPECT_THAT(labels("cuda:3"), ElementsAre("cuda:3 cuda:3"));
}

TEST(DeviceList, SeveralInTheOrderGiven) {
  EXPECT_THAT(labels("cuda:2,cuda"), ElementsAre("cuda:2 cuda:2", "cuda:0 cuda:0"));
  EXPECT_THAT(labels("all", 2), ElementsAre("cuda:0 cuda:0", "cuda:1 cuda:1"));
  EXPECT_THAT(labels("cpu,cpu"), ElementsAre("cpu cpu:0", "cpu cpu:1"));
}

TEST(DeviceList, WhatMakesNoSenseIsRefused) {
  for (const char* bad : {"", ",", "cpu,", "cuda:", "cuda:-1", "cuda:1x", "gpu", "auto",
                          "all,cuda:0", "cuda:0, cuda:1"}) {
    EXPECT_EQ(error_of(bad, 4).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(error_of("cuda,cuda:0").message(), HasSubstr("'cuda:0' is named twice"));
  EXPECT_THAT(error_of("cpu,cuda:0").message(), HasSubstr("not the same to the bit"));
  EXPECT_EQ(error_of("all").code(), StatusCode::kUnavailable);
  std::string many = "cpu";
  for (int i = 0; i < static_cast<int>(kMaxDevices); ++i) many += ",cpu";
  EXPECT_EQ(error_of(many).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gapless
