// What answers are, whatever else runs: the shipped model behind the whole engine.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "engine/engine_test_kit.h"

namespace gapless {
namespace {

using testing::Answer;

class EngineAnswersTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = load_model(open_device("cpu").value(), "");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    engine_ = Engine::start(std::move(model).value(), {}).value().release();
  }
  static void TearDownTestSuite() {
    delete engine_;
    engine_ = nullptr;
  }

  static SkillRequest wild(int max_tokens = 24) {
    SkillRequest request;
    request.text = "Say anything.";
    request.settings.temperature = 1.5f;
    request.settings.ignore_eos = true;
    request.settings.max_tokens = max_tokens;
    return request;
  }

  static SkillResult run(const SkillRequest& request) {
    const StatusOr<SkillResult> result = engine_->run(request);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? *result : SkillResult();
  }

  static std::vector<SkillResult> run_choices(const SkillRequest& request, int count) {
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < count; ++i) answers.push_back(std::make_shared<Answer>());
    const auto ids = engine_->submit_choices(request, {answers.begin(), answers.end()});
    EXPECT_TRUE(ids.ok()) << ids.status().to_string();
    if (!ids.ok()) return {};
    EXPECT_EQ(std::set<RequestId>(ids->begin(), ids->end()).size(), answers.size());
    std::vector<SkillResult> results;
    for (const auto& answer : answers) {
      const StatusOr<SkillResult> result = answer->promise.get_future().get();
      EXPECT_TRUE(result.ok()) << result.status().to_string();
      if (result.ok()) results.push_back(*result);
    }
    return results;
  }

  static Engine* engine_;
};

Engine* EngineAnswersTest::engine_ = nullptr;

TEST_F(EngineAnswersTest, WithoutASeedTheyDifferAndWithOneTheyDoNot) {
  SkillRequest even = wild();
  even.settings.temperature = 5;  // all tokens are about as likely
  std::set<std::string> texts;
  for (int i = 0; i < 10; ++i) texts.insert(run(even).text);
  EXPECT_GT(texts.size(), 8u);
  SkillRequest seeded = wild();
  seeded.settings.seed = 5;
  EXPECT_EQ(run(seeded).text, run(seeded).text);
}

TEST_F(EngineAnswersTest, ChoicesAreRequestsWithTheNextSeeds) {
  SkillRequest even = wild();
  even.settings.temperature = 5;  // all tokens are about as likely
  std::set<std::string> texts;
  for (const SkillResult& result : run_choices(even, 6)) texts.insert(result.text);
  EXPECT_GT(texts.size(), 4u) << "without a seed each has its own";

  SkillRequest seeded = wild();
  seeded.settings.seed = 40;
  const std::vector<SkillResult> choices = run_choices(seeded, 3);
  ASSERT_EQ(choices.size(), 3u);
  for (const SkillResult& choice : choices) {
    EXPECT_EQ(choice.text, run(seeded).text);
    ++*seeded.settings.seed;
  }
}

TEST_F(EngineAnswersTest, ChoicesThatCannotBePreparedAllEnd) {
  SkillRequest request = wild();
  request.images = {std::make_shared<const std::string>("no picture at all")};
  std::vector<std::shared_ptr<Answer>> answers = {std::make_shared<Answer>(),
                                                  std::make_shared<Answer>()};
  ASSERT_TRUE(engine_->submit_choices(request, {answers.begin(), answers.end()}).ok());
  for (const auto& answer : answers) {
    const StatusOr<SkillResult> result = answer->promise.get_future().get();
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().field(), "image_url");
  }
}

// On every token of a real answer, and with later ones in flight.
TEST_F(EngineAnswersTest, AStopStringIsAStopWhereverTheLimitLies) {
  SkillRequest request = wild(30);
  request.settings.seed = 7;
  const SkillResult whole = run(request);
  ASSERT_EQ(whole.finish_reason, FinishReason::kLength);
  ASSERT_EQ(whole.metrics.output_tokens, 30);
  const std::string stop = whole.text.substr(whole.text.size() / 2, 4);
  const std::size_t at = whole.text.find(stop);
  request.settings.stop = {stop};
  int least = 0;  // tokens until the stop string is whole
  for (int limit = 1; limit <= 30; ++limit) {
    request.settings.max_tokens = limit;
    const SkillResult result = run(request);
    if (result.finish_reason == FinishReason::kStop) {
      if (least == 0) least = limit;
      EXPECT_EQ(result.text, whole.text.substr(0, at));
      EXPECT_LE(result.metrics.output_tokens, least) << "tokens of the answer only";
    } else {
      EXPECT_EQ(least, 0) << "limit " << limit << " is past the stop string";
      EXPECT_EQ(result.metrics.output_tokens, limit);
    }
  }
  EXPECT_GT(least, 0);
  EXPECT_LT(least, 30);
}

TEST_F(EngineAnswersTest, OneWithoutTokensHasTimes) {
  SkillRequest request = wild();
  request.settings.ignore_eos = false;
  request.settings.logit_bias = {{engine_->model().prompts.config().eos_id, 100}};
  request.settings.temperature = 0;
  const SkillResult result = run(request);
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.metrics.output_tokens, 0);
  EXPECT_GT(result.metrics.ttft_ms, 0);
  EXPECT_GT(result.metrics.prefill_time_ms, 0);
}

// Each name gets the answer of a request of its own, and the picture is computed once.
TEST_F(EngineAnswersTest, SeveralObjectsAreAnsweredEachAsAlone) {
  SkillRequest request;
  request.skill = Skill::kDetect;
  request.objects = {"circle", "square", "star"};
  request.settings.confidence = true;
  auto bytes = read_file(GAPLESS_SOURCE_DIR "/tests/golden/tiny/tall.png", kMaxImageBytes);
  ASSERT_TRUE(bytes.ok());
  request.images = {std::make_shared<const std::string>(std::move(bytes).value())};
  const std::vector<SkillResult> together = run_choices(request, 3);
  ASSERT_EQ(together.size(), 3u);
  std::size_t num_boxes = 0;
  int num_computed = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    num_computed += together[i].metrics.cached_tokens == 0 ? 1 : 0;
    const SkillResult alone = run(request_of_choice(request, i));
    ASSERT_EQ(together[i].boxes.size(), alone.boxes.size());
    ASSERT_EQ(together[i].confidences.size(), alone.boxes.size());
    for (std::size_t b = 0; b < alone.boxes.size(); ++b) {
      EXPECT_EQ(together[i].boxes[b].x_min, alone.boxes[b].x_min);
      EXPECT_EQ(together[i].boxes[b].y_max, alone.boxes[b].y_max);
      EXPECT_EQ(together[i].confidences[b].object, alone.confidences[b].object);
      EXPECT_EQ(together[i].confidences[b].bins, alone.confidences[b].bins);
      EXPECT_GT(alone.confidences[b].object, 0.5f) << "it was the likelier way";
      ASSERT_EQ(alone.confidences[b].bins.size(), 4u);
      ++num_boxes;
    }
    SkillRequest unasked = request_of_choice(request, i);
    unasked.settings.confidence = false;
    const SkillResult same = run(unasked);
    ASSERT_EQ(same.boxes.size(), alone.boxes.size());
    EXPECT_TRUE(same.confidences.empty());
  }
  EXPECT_GT(num_boxes, 1u);
  EXPECT_LE(num_computed, 1) << "the others find the first one's image";
}

TEST_F(EngineAnswersTest, AsManyAnswersAsNames) {
  SkillRequest request;
  request.skill = Skill::kPoint;
  request.objects = {"circle", "square"};
  request.images = {testing::flat_picture(64, 64, 128)};
  EXPECT_EQ(engine_->run(request).status().field(), "objects");
}

// A prompt of the most pictures takes more of a step than one row has.
TEST_F(EngineAnswersTest, OneRowAndLittleRoomChangeNoAnswer) {
  const auto load = [](const ModelOptions& options) {
    return load_model(open_device("cpu").value(), "", options).value();
  };
  const auto small = Engine::start(load({.max_rows = 1, .sizing = StepSizing::kSmall}), {}).value();
  EXPECT_EQ(small->model().model->limits().max_seats, 1);
  SkillRequest request;
  request.text = "How many circles are there?";
  request.settings.max_tokens = 12;
  request.settings.ignore_eos = true;
  const auto picture = std::make_shared<const std::string>(
      read_file(GAPLESS_SOURCE_DIR "/models/tiny/examples/shapes.png", kMaxImageBytes).value());
  request.images.assign(2, picture);
  const SkillResult usual = run(request);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 3; ++i) {
    answers.push_back(std::make_shared<Answer>());
    ASSERT_TRUE(small->submit(request, answers.back()).ok());
  }
  for (const auto& answer : answers) {
    const StatusOr<SkillResult> result = answer->promise.get_future().get();
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_EQ(result->text, usual.text);
  }
  request.images.assign(kMaxImagesPerPrompt, picture);
  EXPECT_EQ(small->run(request).status().code(), engine_->run(request).status().code());
}

}  // namespace
}  // namespace gapless
