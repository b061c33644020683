// A device that is lost under the whole engine, with the model that ships: everybody hears which
// step and call it was, whether their picture waits, is decoded or is on the device; nobody is
// accepted any more; and the engine can be torn down.
#include <gmock/gmock.h>

#include <atomic>

#include "engine/engine_test_kit.h"
#include "sim/faulty_device.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

class EngineDeviceLostTest : public ::testing::TestWithParam<DeviceFault::Kind> {
 protected:
  void start(std::int64_t step) {
    auto device =
        make_faulty_device(open_device("cpu").value(), {.kind = GetParam(), .wait = step});
    auto model = load_model(std::move(device), "");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    EngineOptions options;
    options.num_preprocess_threads = 1;
    options.loop.step_timeout_ns = 2'000'000'000;  // of a step of 10 ms, under a sanitizer too
    if (GetParam() == DeviceFault::Kind::kLose) options.loop.step_timeout_ns = 60'000'000'000;
    options.loop.on_device_lost = [this](const Status& status) {
      ++num_told_;
      journal_.add("lost");
      told_ = status;
    };
    auto engine = Engine::start(std::move(model).value(), options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }
  std::shared_ptr<JournalSink> ask(const std::string& name, SkillRequest request) {
    auto sink = std::make_shared<JournalSink>(journal_, name);
    EXPECT_TRUE(engine_->submit(std::move(request), sink).ok());
    return sink;
  }

  Journal journal_;
  std::atomic<int> num_told_{0};
  Status told_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineDeviceLostTest, EverybodyHearsOfItAndNobodyIsAcceptedAnyMore) {
  std::vector<std::shared_ptr<const std::string>> pictures;
  for (int i = 0; i < 6; ++i) pictures.push_back(flat_picture(300, 30'000, i));
  start(60);
  EXPECT_TRUE(engine_->device_status().ok());
  std::vector<std::shared_ptr<JournalSink>> sinks = {ask("running", question(500))};
  journal_.wait_for("running starts");
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    auto sink = std::make_shared<JournalSink>(journal_, fmt::format("picture {}", i));
    // On a busy machine the device may be lost by now; on no machine has anybody ended before it is.
    if (!engine_->submit(question_about(pictures[i], 500), sink).ok()) break;
    sinks.push_back(sink);
  }
  const int lost_at = journal_.wait_for("lost");
  EXPECT_LT(lost_at, journal_.wait_for("running ends")) << "who watches hears first";
  const Status lost = engine_->device_status();
  EXPECT_EQ(lost.code(), StatusCode::kDeviceError);
  EXPECT_THAT(lost.message(), AllOf(HasSubstr("the device is lost: "), HasSubstr(" step "),
                                    HasSubstr(GetParam() == DeviceFault::Kind::kLose
                                                  ? "injected fault: Event::synchronize_within"
                                                  : "did not end within 2 s")));
  // All of them, without waiting for the pictures to be decoded in vain.
  for (std::size_t i = 1; i < sinks.size(); ++i) {
    journal_.wait_for(fmt::format("picture {} ends", i - 1));
  }
  for (const auto& sink : sinks) EXPECT_EQ(sink->status().message(), lost.message());
  EXPECT_EQ(engine_->run(question(1)).status().message(), lost.message());
  engine_.reset();
  EXPECT_EQ(num_told_.load(), 1);
  EXPECT_EQ(told_.message(), lost.message());
}

INSTANTIATE_TEST_SUITE_P(Faults, EngineDeviceLostTest,
                         ::testing::Values(DeviceFault::Kind::kLose, DeviceFault::Kind::kHang),
                         [](const auto& fault) {
                           return fault.param == DeviceFault::Kind::kLose ? "Lost" : "Hung";
                         });

TEST(DeviceFaultTest, IsReadFromText) {
  EXPECT_EQ(parse_device_fault("lose@3")->wait, 3);
  EXPECT_EQ(parse_device_fault("hang@12")->kind, DeviceFault::Kind::kHang);
  for (const char* bad : {"", "lose", "lose@", "lose@0", "lose@1x", "burn@1", "@1"}) {
    EXPECT_EQ(parse_device_fault(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace gapless
