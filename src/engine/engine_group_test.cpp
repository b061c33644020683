// Several CPU engines in one process, with the model that ships.
#include "engine/engine_group.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "engine/engine_test_kit.h"
#include "engine/promise_sink.h"
#include "sim/faulty_device.h"
#include "skill/face_gaze.h"

namespace gapless {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

class EngineGroupTest : public ::testing::Test {
 protected:
  // `faults`: by device, as parse_device_fault() has them; empty: none.
  void start(int num_devices, EngineOptions options = {}, std::vector<std::string> faults = {}) {
    options.num_preprocess_threads = 1;
    options.loop.step_timeout_ns = 60'000'000'000;
    options.loop.on_device_lost = [this](const Status&) { ++num_told_; };
    faults.resize(static_cast<std::size_t>(num_devices));
    std::vector<std::string> labels;
    for (int i = 0; i < num_devices; ++i) labels.push_back(fmt::format("cpu:{}", i));
    auto group = EngineGroup::start(
        labels,
        [&](std::size_t index) {
          auto device = open_device("cpu").value();
          if (!faults[index].empty()) {
            device =
                make_faulty_device(std::move(device), parse_device_fault(faults[index]).value());
          }
          return load_model(std::move(device), model_name_);
        },
        options);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    group_ = std::move(group).value();
  }
  std::shared_ptr<JournalSink> ask(const std::string& name, SkillRequest request) {
    auto sink = std::make_shared<JournalSink>(journal_, name);
    EXPECT_TRUE(group_->submit(std::move(request), sink).ok());
    return sink;
  }
  std::vector<int> active() const {
    std::vector<int> counts;
    for (int i = 0; i < group_->size(); ++i) counts.push_back(group_->engine(i).num_active());
    return counts;
  }
  // What is left of a request goes a moment after its last event.
  void wait_until_idle() {
    const auto deadline = std::chrono::steady_clock::now() + kDeadlockGuard;
    for (int i = 0; i < group_->size(); ++i) {
      while (group_->engine(i).num_active() > 0 || group_->tokens_to_do(i) > 0) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "something is left behind";
        std::this_thread::yield();
      }
    }
  }

  std::string model_name_;  // empty: the shipped one
  Journal journal_;
  std::atomic<int> num_told_{0};
  std::unique_ptr<EngineGroup> group_;
};

TEST_F(EngineGroupTest, RequestsAreSpreadAndEachAnswerIsTheOneOfASingleDevice) {
  start(1);
  std::vector<SkillRequest> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(question_about(flat_picture(60 + i, 40, 20 * i), 12));
    requests.push_back(question(9 + i));
  }
  std::vector<std::string> alone;
  for (const SkillRequest& request : requests) alone.push_back(group_->run(request)->text);
  group_.reset();
  start(2);
  std::vector<std::future<StatusOr<SkillResult>>> answers;
  for (int round = 0; round < 2; ++round) {
    for (const SkillRequest& request : requests) {
      auto sink = std::make_shared<PromiseSink>();
      answers.push_back(sink->future());
      ASSERT_TRUE(group_->submit(request, sink).ok());
    }
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].get()->text, alone[i % alone.size()]) << i;
  }
  wait_until_idle();
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(group_->engine(i).loop().ledger().totals().steps(), 20) << "device " << i;
  }
}

TEST_F(EngineGroupTest, TheNextQuestionAboutAPictureFindsItsPrefix) {
  start(3);
  const auto first = flat_picture(80, 60, 10), second = flat_picture(80, 60, 200);
  for (int round = 0; round < 4; ++round) {
    for (const auto& picture : {first, second}) {
      const auto result = group_->run(question_about(picture, 2));
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      EXPECT_EQ(result->metrics.cached_tokens, round == 0 ? 0 : 730);
    }
  }
}

TEST_F(EngineGroupTest, AFullDeviceIsPassedOver) {
  EngineOptions options;
  options.max_active_requests = 2;
  start(2, options);
  const auto picture = flat_picture(80, 60, 10);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    const auto id = group_->submit(question_about(picture, 1200),
                                   std::make_shared<JournalSink>(journal_, std::to_string(i)));
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    ids.push_back(*id);
  }
  EXPECT_THAT(active(), ElementsAre(2, 2)) << "although one device knows the picture";
  EXPECT_EQ(group_->submit(question(1), std::make_shared<PromiseSink>()).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(group_->submit(SkillRequest(), std::make_shared<PromiseSink>()).status().code(),
            StatusCode::kInvalidArgument);
  for (const RequestId id : ids) group_->cancel(id);
  for (int i = 0; i < 4; ++i) journal_.wait_for(fmt::format("{} ends", i));
  wait_until_idle();
}

TEST_F(EngineGroupTest, ACancelFindsTheRightRequest) {
  start(2);
  std::vector<RequestId> ids;
  std::vector<std::shared_ptr<JournalSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<JournalSink>(journal_, std::to_string(i)));
    ids.push_back(group_->submit(question(i % 2 == 0 ? 1500 : 40), sinks.back()).value());
  }
  EXPECT_THAT(active(), ElementsAre(2, 2));
  group_->cancel(ids[0]);
  group_->cancel(ids[2]);
  group_->cancel(RequestId());
  for (int i = 0; i < 4; ++i) journal_.wait_for(fmt::format("{} ends", i));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sinks[i]->status().code(), i % 2 == 0 ? StatusCode::kCancelled : StatusCode::kOk);
  }
}

TEST_F(EngineGroupTest, AnswersToOneRequestComeFromOneDevice) {
  start(2);
  std::vector<std::shared_ptr<ResponseSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<JournalSink>(journal_, std::to_string(i)));
  }
  const auto ids = group_->submit_choices(question(200), sinks);
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_THAT(active(), ElementsAre(3, 0));
  for (const RequestId id : *ids) group_->cancel(id);
  for (int i = 0; i < 3; ++i) journal_.wait_for(fmt::format("{} ends", i));
  wait_until_idle();
}

TEST_F(EngineGroupTest, ALostDeviceTakesOnlyItsOwnRequestsAlong) {
  start(2, {}, {"", "lose@60"});
  const auto stays = ask("stays", question(200));
  const auto goes = ask("goes", question(200));
  EXPECT_THAT(active(), ElementsAre(1, 1));
  journal_.wait_for("goes ends");
  EXPECT_EQ(goes->status().code(), StatusCode::kDeviceError);
  EXPECT_THAT(group_->lost_devices(), ElementsAre("cpu:1"));
  EXPECT_TRUE(group_->device_status().ok());
  EXPECT_EQ(num_told_.load(), 0) << "there is another";
  for (int i = 0; i < 4; ++i) {
    const auto result = group_->run(question(3));
    EXPECT_TRUE(result.ok()) << result.status().to_string();
  }
  journal_.wait_for("stays ends");
  EXPECT_TRUE(stays->status().ok()) << stays->status().to_string();
  wait_until_idle();
}

TEST_F(EngineGroupTest, WhenAllAreLostSoIsTheGroup) {
  start(2, {}, {"lose@40", "lose@60"});
  const std::vector<std::shared_ptr<JournalSink>> sinks = {ask("a", question(200)),
                                                           ask("b", question(200))};
  for (const char* name : {"a", "b"}) journal_.wait_for(std::string(name) + " ends");
  for (const auto& sink : sinks) EXPECT_EQ(sink->status().code(), StatusCode::kDeviceError);
  EXPECT_THAT(group_->lost_devices(), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(group_->device_status().code(), StatusCode::kDeviceError);
  EXPECT_EQ(group_->run(question(1)).status().message(), group_->device_status().message());
  group_.reset();
  EXPECT_EQ(num_told_.load(), 1);
}

TEST(EngineGroup, ADeviceThatDoesNotStartIsNamed) {
  const auto group = EngineGroup::start({"cpu:0", "cpu:1"},
                                        [](std::size_t index) {
                                          return load_model(open_device("cpu").value(),
                                                            index == 0 ? "" : "/there/is/nothing");
                                        },
                                        {});
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(group.status().message(), HasSubstr("cpu:1"));
}

TEST(EngineGroup, EnginesShareTheHostsCores) {
  const EngineOptions given;
  const EngineOptions one = share_of_host(given, 1, 64);
  EXPECT_EQ(one.num_preprocess_threads, 0) << "the engine's own default";
  EXPECT_EQ(one.num_resize_threads, 61) << "some cores are busy beside";
  EXPECT_EQ(share_of_host(given, 1, 4).num_resize_threads, 2);
  EXPECT_EQ(share_of_host(given, 4, 64).num_preprocess_threads, 8);
  EXPECT_EQ(share_of_host(given, 4, 64).num_resize_threads, 13);
  EXPECT_EQ(share_of_host(given, 4, 16).num_preprocess_threads, 2);
  EXPECT_EQ(share_of_host(given, 8, 2).num_preprocess_threads, 2);
  EXPECT_EQ(share_of_host(given, 8, 2).num_resize_threads, 1);
  EngineOptions chosen;
  chosen.num_preprocess_threads = 5;
  EXPECT_EQ(share_of_host(chosen, 4, 64).num_preprocess_threads, 5);
}

TEST_F(EngineGroupTest, AGazeFromAFaceIsTheAverageOfMany) {
  model_name_ = "random:moondream3-small:5";
  start(2);
  int num_gazes = 0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    SkillRequest request = testing::question_about(
        testing::flat_picture(64, 48, 60 + 50 * static_cast<int>(seed)), 20);
    request.skill = Skill::kPoint;
    request.text = "gaze";
    request.settings = {};
    request.settings.seed = seed;
    // By itself this model sees nobody look anywhere.
    if (seed != 2) request.settings.logit_bias = {{TokenId(5), 50}};
    request.spatial_refs = {
        {.is_box = true, .x_center = 0.5f, .y_center = 0.5f, .width = 0.25f, .height = 0.5f}};
    std::vector<std::optional<Point>> gazes;
    int num_tokens = 0;
    for (const SkillRequest& one : face_gaze_requests(request)) {
      const StatusOr<SkillResult> result = group_->run(one);
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      gazes.push_back(result->points.empty() ? std::nullopt
                                             : std::optional(result->points.front()));
      num_tokens += result->metrics.output_tokens;
      num_gazes += result->points.empty() ? 0 : 1;
    }
    const std::optional<Point> expected = average_gaze(gazes);
    const StatusOr<SkillResult> result = group_->run(request);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    ASSERT_EQ(result->points.size(), expected ? 1u : 0u);
    if (expected) {
      EXPECT_EQ(result->points[0].x, expected->x);
      EXPECT_EQ(result->points[0].y, expected->y);
    }
    EXPECT_EQ(result->metrics.output_tokens, num_tokens);
  }
  EXPECT_EQ(num_gazes, 40);
}

TEST_F(EngineGroupTest, AGazeFromAFaceFailsOnce) {
  struct Counted final : Answer {
    void on_error(const Status& status) override {
      ++num_errors;
      Answer::on_error(status);
    }
    int num_errors = 0;
  };
  start(2);
  SkillRequest request =
      testing::question_about(std::make_shared<const std::string>("no picture"), 20);
  request.skill = Skill::kPoint;
  request.text = "gaze";
  request.settings = {};
  request.spatial_refs = {
      {.is_box = true, .x_center = 0.5f, .y_center = 0.5f, .width = 0.25f, .height = 0.5f}};
  auto answer = std::make_shared<Counted>();
  ASSERT_TRUE(group_->submit(request, answer).ok());
  const StatusOr<SkillResult> result = answer->promise.get_future().get();
  EXPECT_EQ(result.status().field(), "image_url");
  request.settings.confidence = true;
  EXPECT_EQ(group_->submit(request, std::make_shared<Counted>()).status().field(), "confidence");
  group_.reset();
  EXPECT_EQ(answer->num_errors, 1);
}

TEST_F(EngineGroupTest, ASegmentsBoxReachesTheClient) {
  struct Noted final : Answer {
    void on_box(const Box& found, int) override { box = found; }
    std::optional<Box> box;
  };
  model_name_ = "random:moondream3-small:5";
  start(1);
  SkillRequest request = testing::question_about(testing::flat_picture(64, 48, 90), 20);
  request.skill = Skill::kSegment;
  auto answer = std::make_shared<Noted>();
  ASSERT_TRUE(group_->submit(std::move(request), answer).ok());
  const auto result = answer->promise.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_TRUE(answer->box);
  EXPECT_EQ(answer->box->y_max, result->boxes.at(0).y_max);
  EXPECT_EQ(answer->streamed, result->text);
}

TEST_F(EngineGroupTest, ReasoningReachesTheClient) {
  struct Noted final : Answer {
    void on_reasoning(std::string_view chunk, int) override { reasoning += chunk; }
    std::string reasoning;
  };
  model_name_ = "random:moondream3-small:5";
  start(1);
  SkillRequest request = question(12);
  request.reasoning = true;
  auto answer = std::make_shared<Noted>();
  ASSERT_TRUE(group_->submit(std::move(request), answer).ok());
  const auto result = answer->promise.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_TRUE(result->reasoning);
  EXPECT_FALSE(result->reasoning->text.empty());
  EXPECT_EQ(answer->reasoning, result->reasoning->text);
  EXPECT_EQ(answer->streamed, result->text);
  EXPECT_EQ(result->metrics.output_tokens, result->metrics.reasoning_tokens + 12);
}

}  // namespace
}  // namespace gapless
