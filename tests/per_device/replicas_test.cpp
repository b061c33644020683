// Engines of several devices in one process: every device gives the tokens that the first one gives,
// alone and all at once, none stalls, and one that faults takes only its own requests along. All GPUs
// with GAPLESS_TEST_DEVICE=cuda, at least two; two engines on the CPU otherwise.
//
// What it holds above all: that each call of a thread goes to the device it was meant for.
#include <gmock/gmock.h>

#include <future>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "device/device_list.h"
#include "engine/engine_group.h"
#include "engine/promise_sink.h"
#include "tests/per_device/test_device.h"

namespace gapless {
namespace {

using Answer = StatusOr<SkillResult>;

std::vector<SkillRequest> questions() {
  std::vector<SkillRequest> requests;
  for (const char* name : {"shapes.png", "small.png"}) {
    auto bytes =
        read_file(std::string(GAPLESS_SOURCE_DIR "/models/tiny/examples/") + name, kMaxImageBytes);
    GAPLESS_CHECK_MSG(bytes.ok(), bytes.status().to_string());
    const auto picture = std::make_shared<const std::string>(std::move(bytes).value());
    for (const Skill skill : {Skill::kQuery, Skill::kCaption, Skill::kDetect, Skill::kPoint}) {
      SkillRequest request;
      request.skill = skill;
      request.images = {picture};
      request.text = skill == Skill::kCaption ? "" : "circle";
      request.settings.max_tokens = 40;
      requests.push_back(request);
      request.settings.temperature = 0.8f;
      request.settings.seed = 7;
      requests.push_back(request);
    }
  }
  SkillRequest text;
  text.text = "Go on and on.";
  text.settings.ignore_eos = true;
  text.settings.max_tokens = 200;
  requests.push_back(text);
  return requests;
}

std::string text_of(const Answer& answer) {
  if (!answer.ok()) return answer.status().to_string();
  std::string text = answer->text;
  for (const Point& point : answer->points) text += fmt::format(" ({} {})", point.x, point.y);
  for (const Box& box : answer->boxes) {
    text += fmt::format(" [{} {} {} {}]", box.x_min, box.y_min, box.x_max, box.y_max);
  }
  return text;
}

class ReplicasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const bool on_gpu = test_device_kind() == DeviceKind::kCuda;
    const auto devices = parse_device_list(on_gpu ? "all" : "cpu,cpu", num_cuda_devices);
    ASSERT_TRUE(devices.ok()) << devices.status().to_string();
    ASSERT_GE(devices->size(), 2u) << "there is nothing to compare";
    std::vector<std::string> labels;
    for (const NamedDevice& one : *devices) labels.push_back(one.label);
    auto group = EngineGroup::start(
        labels,
        [&](std::size_t index) -> StatusOr<std::unique_ptr<LoadedModel>> {
          GAPLESS_ASSIGN_OR_RETURN(auto device, open_device((*devices)[index].spec));
          return load_model(std::move(device), "",
                            {.compute = test_compute(), .adjust_limits = nullptr});
        },
        {});
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    group_ = std::move(group).value();
  }

  std::unique_ptr<EngineGroup> group_;
};

TEST_F(ReplicasTest, EveryDeviceGivesTheSameAnswersAloneAndTogether) {
  const std::vector<SkillRequest> requests = questions();
  std::vector<std::string> expected;
  for (const SkillRequest& request : requests) {
    const Answer answer = group_->engine(0).run(request);
    ASSERT_TRUE(answer.ok()) << answer.status().to_string();
    expected.push_back(text_of(answer));
  }
  for (int i = 1; i < group_->size(); ++i) {
    for (std::size_t k = 0; k < requests.size(); ++k) {
      EXPECT_EQ(text_of(group_->engine(i).run(requests[k])), expected[k])
          << group_->label(i) << ", request " << k;
    }
  }
  // From this one thread, to all devices by turns, while all of them run.
  std::vector<std::future<Answer>> answers;
  for (int round = 0; round < 4; ++round) {
    for (const SkillRequest& request : requests) {
      auto sink = std::make_shared<PromiseSink>();
      answers.push_back(sink->future());
      ASSERT_TRUE(group_->submit(request, sink).ok());
    }
  }
  for (std::size_t k = 0; k < answers.size(); ++k) {
    EXPECT_EQ(text_of(answers[k].get()), expected[k % expected.size()]) << "request " << k;
  }
  for (int i = 0; i < group_->size(); ++i) {
    EXPECT_GT(group_->engine(i).loop().ledger().totals().steps(), 0) << group_->label(i);
    EXPECT_EQ(group_->engine(i).loop().forbidden_calls(), 0) << "I7, " << group_->label(i);
  }
}

TEST_F(ReplicasTest, AStreamTakesNothingOfAnotherDevice) {
  Device& first = *group_->engine(0).model().device;
  Device& second = *group_->engine(1).model().device;
  const auto stream = first.create_stream("first").value();
  const PinnedBuffer foreign = second.allocate_pinned(64).value();
  const Buffer own = first.allocate(64).value();
  EXPECT_EQ(stream->copy_to_device(own.data(), foreign.data(), 64).code(),
            StatusCode::kInvalidArgument);
  if (test_device_kind() != DeviceKind::kCuda) return;  // CPU events are of no device
  const auto event = second.create_event().value();
  EXPECT_EQ(stream->record(*event).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->wait(*event).code(), StatusCode::kInvalidArgument);
}

// Last: a CUDA process does not recover. After a kernel's fault on one GPU the driver refuses calls to every GPU of the process, as its
// manual says. What one device can lose alone is shown where faults can be scripted (engine_group_test, engine_service_test).
TEST_F(ReplicasTest, AKernelsFaultTakesEveryDeviceOfTheProcessAlong) {
  if (test_device_kind() != DeviceKind::kCuda) GTEST_SKIP() << "not an error of this device";
  SkillRequest request = questions().back();
  const LoadedModel& victim = group_->engine(1).model();
  const auto stream = victim.device->create_stream("wild").value();
  auto* const nowhere = reinterpret_cast<std::uint64_t*>(std::uintptr_t{8});
  ASSERT_TRUE(victim.kernels->stamp_time(*stream, nowhere).ok()) << "a launch only enqueues";
  EXPECT_EQ(group_->engine(1).run(request).status().code(), StatusCode::kDeviceError);
  EXPECT_THAT(group_->lost_devices(), ::testing::ElementsAre(group_->label(1)));
  EXPECT_TRUE(group_->device_status().ok()) << "until somebody asks the other one";
  EXPECT_EQ(group_->engine(0).run(request).status().code(), StatusCode::kDeviceError);
  EXPECT_EQ(group_->device_status().code(), StatusCode::kDeviceError)
      << "so that the server leaves, and its supervisor starts it again";
}

}  // namespace
}  // namespace gapless
