// Segments that are refined, behind the whole engine: small models and a network of random weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "engine/engine_test_kit.h"
#include "engine/refine_worker.h"
#include "image/svg_path.h"

namespace gapless {
namespace {

constexpr const char* kModel = "random:moondream3-small:5";

std::shared_ptr<SegmentRefiner> load_test_refiner() {
  const std::filesystem::path file = GAPLESS_SOURCE_DIR "/tests/golden/refiner/head.safetensors";
  auto refiner = SegmentRefiner::load(find_model(kModel).value(), file, Compute::kFloat32);
  EXPECT_TRUE(refiner.ok()) << refiner.status().to_string();
  return std::move(refiner).value();
}

std::unique_ptr<Engine> start_refining_engine(std::shared_ptr<SegmentRefiner> refiner) {
  auto model = load_model(open_device("cpu").value(), kModel);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  EngineOptions options;
  options.refiner = std::move(refiner);
  return Engine::start(std::move(model).value(), options).value();
}

std::shared_ptr<const std::string> test_picture() {
  auto bytes = read_file(GAPLESS_SOURCE_DIR "/tests/golden/tiny/single.png", kMaxImageBytes);
  return std::make_shared<const std::string>(std::move(bytes).value());
}

// Warm enough that paths have an inside.
SkillRequest refined_request(std::uint64_t seed) {
  SkillRequest request;
  request.skill = Skill::kSegment;
  request.text = "circle";
  request.images = {test_picture()};
  request.settings.seed = seed;
  request.settings.temperature = 9;
  request.settings.max_tokens = 200;
  return request;
}

struct BoxedAnswer final : testing::Answer {
  void on_box(const Box& found, int) override { box = found; }
  std::optional<Box> box;
};

TEST(EngineRefineTest, TheLastEventIsRefinedAndWhatIsStreamedIsCoarse) {
  const auto plain = start_refining_engine(nullptr);
  const auto refining = start_refining_engine(load_test_refiner());
  int num_refined = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    const StatusOr<SkillResult> coarse = plain->run(refined_request(seed));
    ASSERT_TRUE(coarse.ok()) << coarse.status().to_string();
    EXPECT_FALSE(coarse->is_refined);
    const auto answer = std::make_shared<BoxedAnswer>();
    ASSERT_TRUE(refining->submit(refined_request(seed), answer).ok());
    const StatusOr<SkillResult> result = answer->promise.get_future().get();
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_EQ(answer->streamed, coarse->text);
    EXPECT_EQ(answer->box->x_min, coarse->boxes[0].x_min);
    EXPECT_EQ(result->metrics.output_tokens, coarse->metrics.output_tokens);
    if (!result->is_refined) {
      EXPECT_EQ(result->text, coarse->text);
      continue;
    }
    ++num_refined;
    EXPECT_NE(result->text, coarse->text);
    EXPECT_TRUE(result->text.ends_with('z')) << result->text;
    EXPECT_TRUE(flatten_svg_path(result->text, 0.01).ok());
    ASSERT_EQ(result->boxes.size(), 1u);
    EXPECT_LT(result->boxes[0].x_min, result->boxes[0].x_max);
  }
  EXPECT_GT(num_refined, 1) << "few paths had an inside";
}

TEST(EngineRefineTest, OtherSkillsAreLeftAlone) {
  const auto refining = start_refining_engine(load_test_refiner());
  SkillRequest request = refined_request(1);
  request.skill = Skill::kDetect;
  const StatusOr<SkillResult> result = refining->run(request);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_FALSE(result->is_refined);
}

// A client that goes away while its segment is being refined, and an engine that is closed.
TEST(EngineRefineTest, ACancelledRefinementEnds) {
  const auto refiner = load_test_refiner();
  auto refining = start_refining_engine(refiner);
  std::vector<std::shared_ptr<BoxedAnswer>> answers;
  std::vector<RequestId> ids;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    answers.push_back(std::make_shared<BoxedAnswer>());
    const auto id = refining->submit(refined_request(seed), answers.back());
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    ids.push_back(*id);
  }
  for (std::size_t i = 0; i < 6; ++i) refining->cancel(ids[2 * i]);
  refining.reset();
  for (const auto& answer : answers) {
    const StatusOr<SkillResult> result = answer->promise.get_future().get();
    EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kCancelled)
        << result.status().to_string();
  }
}

// What is known of one piece of work.
struct Posted {
  std::promise<StatusOr<std::optional<Outline>>> done;
  RefineWorker::Work work(StopCheck stop) {
    return {.picture = test_picture(),
            .path = "M 0 0 L 1 0 L 1 1 L 0 1 Z",
            .box = {0.2f, 0.2f, 0.7f, 0.7f},
            .stop = std::move(stop),
            .done = [this](const StatusOr<std::optional<Outline>>& refined) {
              done.set_value(refined);
            }};
  }
};

TEST(RefineWorkerTest, WhatDoesNotFitIsNotTaken) {
  // The first one is asked whether to stop, and stays there until it may go on.
  std::promise<void> begun, go;
  std::shared_future<void> may_go = go.get_future().share();
  bool is_first = true;
  Posted first, second, third;
  RefineWorker::Work held = first.work([&] {
    if (std::exchange(is_first, false)) {
      begun.set_value();
      may_go.wait();
    }
    return false;
  });
  RefineWorker worker(load_test_refiner(), 1);  // ends before what its work refers to
  ASSERT_TRUE(worker.try_post(held));
  begun.get_future().wait();
  RefineWorker::Work waits = second.work(nullptr), refused = third.work(nullptr);
  EXPECT_TRUE(worker.try_post(waits));
  EXPECT_FALSE(worker.try_post(refused));
  EXPECT_TRUE(refused.done) << "it is as it was";
  go.set_value();
  EXPECT_TRUE(first.done.get_future().get().ok());
  EXPECT_TRUE(second.done.get_future().get().ok());
}

TEST(RefineWorkerTest, WorkThatIsStoppedOrHasABrokenPictureSaysSo) {
  Posted stopped, broken;
  RefineWorker worker(load_test_refiner(), 8);
  RefineWorker::Work work = stopped.work([] { return true; });
  ASSERT_TRUE(worker.try_post(work));
  EXPECT_EQ(stopped.done.get_future().get().status().code(), StatusCode::kCancelled);
  work = broken.work(nullptr);
  work.picture = std::make_shared<const std::string>("no picture");
  ASSERT_TRUE(worker.try_post(work));
  EXPECT_EQ(broken.done.get_future().get().status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gapless
