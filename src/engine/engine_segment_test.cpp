// Segments of small models with random weights, behind the whole engine.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "engine/engine_test_kit.h"
#include "image/svg_path.h"

namespace gapless {
namespace {

// What a client would see of a segment, in order.
struct SegmentAnswer final : testing::Answer {
  void on_text(std::string_view chunk, int num_tokens) override {
    EXPECT_TRUE(box) << "the box comes first";
    pieces.emplace_back(chunk);
    Answer::on_text(chunk, num_tokens);
  }
  void on_box(const Box& found, int num_tokens) override {
    EXPECT_FALSE(box) << "it comes once";
    EXPECT_EQ(num_tokens, 3);
    box = found;
  }
  std::optional<Box> box;
  std::vector<std::string> pieces;
};

std::unique_ptr<Engine> start_engine(const std::string& model_name) {
  auto model = load_model(open_device("cpu").value(), model_name);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return Engine::start(std::move(model).value(), {}).value();
}

SkillRequest segment_request(std::uint64_t seed, float temperature, int max_tokens) {
  SkillRequest request;
  request.skill = Skill::kSegment;
  request.text = "circle";
  auto bytes = read_file(GAPLESS_SOURCE_DIR "/tests/golden/tiny/single.png", kMaxImageBytes);
  request.images = {std::make_shared<const std::string>(std::move(bytes).value())};
  request.settings.seed = seed;
  request.settings.temperature = temperature;
  request.settings.max_tokens = max_tokens;
  return request;
}

std::string first_letter_of(const std::string& piece) {
  const std::size_t at = piece.find_first_not_of(' ');
  return at == std::string::npos ? "" : piece.substr(at, 1);
}

// Whatever the weights are, wherever the limit lies.
TEST(EngineSegmentTest, RandomWeightsWriteAPathThatParses) {
  std::set<std::string> letters;
  int num_ended = 0;
  for (int weights = 1; weights <= 3; ++weights) {
    const auto engine = start_engine("random:moondream3-small:" + std::to_string(weights));
    for (int i = 0; i < 16; ++i) {
      SCOPED_TRACE(std::to_string(weights) + ", " + std::to_string(i));
      const int max_tokens = 1 + i * 5;
      const auto answer = std::make_shared<SegmentAnswer>();
      // Above temperature 4 all that is allowed is about as likely.
      auto request =
          segment_request(static_cast<std::uint64_t>(i), i % 4 == 0 ? 0.0f : 9.0f, max_tokens);
      request.settings.confidence = i % 2 == 0;
      ASSERT_TRUE(engine->submit(std::move(request), answer).ok());
      const StatusOr<SkillResult> result = answer->promise.get_future().get();
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      EXPECT_TRUE(flatten_svg_path(result->text, 0.01).ok()) << result->text;
      EXPECT_EQ(answer->streamed, result->text);
      ASSERT_EQ(result->boxes.size(), max_tokens < 3 ? 0u : 1u);
      if (max_tokens < 3) continue;
      EXPECT_EQ(answer->box->x_max, result->boxes[0].x_max);
      EXPECT_EQ(result->confidences.size(), i % 2 == 0 ? 1u : 0u);
      for (const std::string& piece : answer->pieces) letters.insert(first_letter_of(piece));
      num_ended += result->finish_reason == FinishReason::kStop ? 1 : 0;
      if (result->finish_reason == FinishReason::kStop) {
        EXPECT_FALSE(result->text.empty());
      } else {
        EXPECT_EQ(result->metrics.output_tokens, max_tokens);
      }
    }
  }
  EXPECT_GT(letters.size(), 12u) << "few commands were tried";
  EXPECT_GT(num_ended, 3) << "few paths ended by themselves";
}

TEST(EngineSegmentTest, AModelWithoutTheSkillSaysWhichHaveIt) {
  const auto engine = start_engine("");
  const StatusOr<SkillResult> result = engine->run(segment_request(1, 0, 10));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.status().field(), "skill");
  EXPECT_NE(result.status().message().find("Moondream 3 and Moondream 3.1 have it"),
            std::string::npos);
}

// Each about a picture that is prepared once.
TEST(EngineSegmentTest, SeveralObjectsAreOutlinedEachAsAlone) {
  const auto engine = start_engine("random:moondream3-small:2");
  SkillRequest request = segment_request(1, 0, 30);
  request.text.clear();
  request.objects = {"circle", "square"};
  std::vector<std::shared_ptr<SegmentAnswer>> answers = {std::make_shared<SegmentAnswer>(),
                                                         std::make_shared<SegmentAnswer>()};
  ASSERT_TRUE(engine->submit_choices(request, {answers.begin(), answers.end()}).ok());
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < 2; ++i) {
    const StatusOr<SkillResult> result = answers[i]->promise.get_future().get();
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    SkillRequest alone = segment_request(1, 0, 30);
    alone.text = request.objects[i];
    const StatusOr<SkillResult> expected = engine->run(alone);
    ASSERT_TRUE(expected.ok()) << expected.status().to_string();
    EXPECT_EQ(result->text, expected->text);
    EXPECT_EQ(result->boxes[0].x_min, expected->boxes[0].x_min);
  }
}

}  // namespace
}  // namespace gapless
