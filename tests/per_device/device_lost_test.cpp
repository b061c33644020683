// What a kernel that faults does to the engine: everybody in flight, and everybody after, gets an
// error that says so, and nothing hangs, crashes or leaks. A suite of its own, since a CUDA context
// does not recover: the process is poisoned from here on.
//
// A step that does not end is taken for the same. None that is waited for ends within a nanosecond.
//
// A fault: only where a wild write is an error of the device. On the CPU device it is one of the process;
// there the simulated device stands in (tests/pipeline_sim).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/host_clock.h"
#include "base/limits.h"
#include "engine/crop_pool.h"
#include "engine/preprocess.h"
#include "model/model_loader.h"
#include "pipeline/loop.h"
#include "tests/per_device/test_device.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

struct Answer final : TokenSink {
  void on_token(const CommittedToken&) override { ++num_tokens; }
  void on_finished(FinishReason end, const Status& end_status, const SequenceTimes&) override {
    reason = end;
    status = end_status;
    ++num_finished;
  }
  FinishReason reason = FinishReason::kStop;
  Status status;
  int num_tokens = 0;
  int num_finished = 0;
};

SkillRequest long_question() {
  SkillRequest request;
  request.skill = Skill::kQuery;
  request.text = "Go on and on.";
  request.settings.ignore_eos = true;
  request.settings.max_tokens = 200;
  return request;
}

// First: the test below leaves nothing for others.
TEST(DeviceLostTest, AStepThatDoesNotEndInTimeEndsEveryRequestAndIsNamed) {
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  auto loaded = load_model(std::move(device).value(), "",
                           {.compute = test_compute(), .adjust_limits = nullptr});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  LoadedModel& model = **loaded;
  std::shared_ptr<CropPool> crops =
      CropPool::create(*model.device, kMaxTilesPerImage + 1, model.model->info().crop_bytes)
          .value();
  RealHostClock clock;
  std::vector<Status> told;
  LoopOptions options{.depth = 2, .step_timeout_ns = 1};
  options.on_device_lost = [&](const Status& status) { told.push_back(status); };
  auto loop = Loop::create(*model.device, *model.model, clock, options).value();
  const Preprocessor preprocessor(model, crops);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 3; ++i) {
    answers.push_back(std::make_shared<Answer>());
    ASSERT_TRUE(loop->submit(preprocessor.prepare(long_question()).value(), answers.back()).ok());
  }
  int num_ticks = 0;
  while (loop->tick() == Loop::Tick::kWorked) ASSERT_LT(++num_ticks, 1000);
  ASSERT_EQ(told.size(), 1u);
  // Steps that end while this thread has no core are not waited for: it need not be the first one.
  EXPECT_THAT(
      told[0].message(),
      MatchesRegex(
          "the device is lost: (prefill|decode) step [0-9]+ of 3 rows did not end within .*"));
  for (const auto& answer : answers) {
    EXPECT_EQ(answer->num_finished, 1);
    EXPECT_EQ(answer->status.message(), told[0].message());
  }
  const auto late = loop->submit(preprocessor.prepare(long_question()).value(), answers.front());
  EXPECT_EQ(late.status().code(), StatusCode::kDeviceError);
}

TEST(DeviceLostTest, AFaultingKernelEndsEveryRequestWithAnErrorThatSaysSo) {
  if (test_device_kind() != DeviceKind::kCuda) GTEST_SKIP() << "not an error of this device";
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  auto loaded = load_model(std::move(device).value(), "",
                           {.compute = test_compute(), .adjust_limits = nullptr});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  LoadedModel& model = **loaded;
  std::shared_ptr<CropPool> crops =
      CropPool::create(*model.device, kMaxTilesPerImage + 1, model.model->info().crop_bytes)
          .value();
  RealHostClock clock;
  auto loop = Loop::create(*model.device, *model.model, clock, {.depth = 2}).value();
  const Preprocessor preprocessor(model, crops);

  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 3; ++i) {
    answers.push_back(std::make_shared<Answer>());
    ASSERT_TRUE(loop->submit(preprocessor.prepare(long_question()).value(), answers.back()).ok());
  }
  for (int tick = 0; tick < 20; ++tick) loop->tick();
  for (const auto& answer : answers) {
    EXPECT_GT(answer->num_tokens, 0);
    ASSERT_EQ(answer->num_finished, 0);
  }

  const auto stream = model.device->create_stream("wild").value();
  auto* const nowhere = reinterpret_cast<std::uint64_t*>(std::uintptr_t{8});
  ASSERT_TRUE(model.kernels->stamp_time(*stream, nowhere).ok()) << "a launch only enqueues";
  int num_ticks = 0;
  while (loop->tick() == Loop::Tick::kWorked) ASSERT_LT(++num_ticks, 1000);

  for (const auto& answer : answers) {
    EXPECT_EQ(answer->num_finished, 1);
    EXPECT_EQ(answer->reason, FinishReason::kError);
    EXPECT_EQ(answer->status.code(), StatusCode::kDeviceError);
    EXPECT_THAT(answer->status.to_string(), AllOf(HasSubstr("device is lost"), HasSubstr("cuda")));
  }
  EXPECT_EQ(loop->counts().seats.rows_in_use, 0);
  EXPECT_EQ(loop->counts().steps_in_flight, 0);

  const auto late = loop->submit(preprocessor.prepare(long_question()).value(), answers.front());
  EXPECT_EQ(late.status().code(), StatusCode::kDeviceError);
  // Calls that come later name themselves, too.
  const Status status = stream->synchronize();
  EXPECT_THAT(status.to_string(), HasSubstr("cudaStreamSynchronize"));
  EXPECT_FALSE(model.device->allocate(1 << 20).ok());
}

}  // namespace
}  // namespace gapless
