// Reasoning and grounding against the oracle (tools/gapless_tools/reasoning.py), on the CPU in float32: the same tokens through the
// loop, and the same text, character offsets and points out of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/host_clock.h"
#include "base/json.h"
#include "base/limits.h"
#include "engine/crop_pool.h"
#include "engine/preprocess.h"
#include "model/model_loader.h"
#include "model/random_model.h"
#include "pipeline/loop.h"
#include "skill/response_json.h"
#include "skill/skill_decoder.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

const std::string kGoldens = GAPLESS_SOURCE_DIR "/tests/golden/";

struct ReasonedTokens final : TokenSink {
  void on_token(const CommittedToken& token) override { tokens.push_back(token); }
  void on_finished(FinishReason end, const Status& end_status, const SequenceTimes&) override {
    reason = end;
    status = end_status;
  }
  std::vector<CommittedToken> tokens;
  FinishReason reason = FinishReason::kError;
  Status status;
};

const boost::json::value& reasoning_golden() {
  static const auto& golden = *new boost::json::value([] {
    const std::string file = kGoldens + "reasoning/reasoning.json";
    return parse_json(read_file(file, 1u << 20).value(), file).value();
  }());
  return golden;
}

// A variant of the goldens and the model that answers like it.
class ReasoningParityTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    variant_ =
        reasoning_golden().at("variants").at(static_cast<std::size_t>(GetParam())).as_object();
    ModelSource source = find_model("random:moondream3-small:7").value();
    // As a checkpoint, so that the weights are rounded to bfloat16, as the oracle's were.
    source.config.tokenizer.reasoning_denied.clear();
    for (const auto& id : variant_.at("denied").as_array()) {
      source.config.tokenizer.reasoning_denied.emplace_back(id.to_number<std::int32_t>());
    }
    ASSERT_TRUE(write_random_model(source, folder_.path()).ok());
    std::filesystem::copy_file(source.tokenizer, folder_.path() / "tokenizer.json");
    ModelOptions options{.compute = Compute::kFloat32};
    options.numerics = {{"answer_feed", std::string(variant_.at("answer_feed").as_string())}};
    auto loaded = load_model(open_device("cpu").value(), folder_.path().string(), options);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    model_ = std::move(loaded).value();
    crops_ = CropPool::create(*model_->device, 80, model_->model->info().crop_bytes).value();
    auto loop = Loop::create(*model_->device, *model_->model, clock_, {});
    ASSERT_TRUE(loop.ok()) << loop.status().to_string();
    loop_ = std::move(loop).value();
  }
  void TearDown() override {
    if (crops_) crops_->close();
  }

  static SkillRequest request_of(const boost::json::object& asked) {
    SkillRequest request;
    request.text = std::string(asked.at("question").as_string());
    request.reasoning = true;
    const std::string image(asked.at("image").as_string());
    if (!image.empty()) {
      auto bytes = read_file(kGoldens + "tiny/" + image, kMaxImageBytes);
      request.images = {std::make_shared<const std::string>(std::move(bytes).value())};
    }
    for (const auto& one : asked.at("bias").as_array()) {
      request.settings.logit_bias.push_back(
          {TokenId(one.at(0).to_number<std::int32_t>()), one.at(1).to_number<float>()});
    }
    request.settings.max_tokens = reasoning_golden().at("max_tokens").to_number<int>();
    request.settings.temperature = 0;
    return request;
  }

  ReasonedTokens run(const SkillRequest& request) {
    const Preprocessor preprocessor(*model_, crops_);
    auto prompt = preprocessor.prepare(request);
    EXPECT_TRUE(prompt.ok()) << prompt.status().to_string();
    const auto sink = std::make_shared<ReasonedTokens>();
    EXPECT_TRUE(loop_->submit(std::move(prompt).value(), sink).ok());
    while (loop_->tick() == Loop::Tick::kWorked) {
    }
    return *sink;
  }

  // What a client gets of these tokens.
  SkillResult answer_of(const SkillRequest& request, const std::vector<CommittedToken>& tokens) {
    const TokenizerConfig& ids = model_->prompts.config();
    const auto decoder = make_skill_decoder(request, model_->tokenizer,
                                            {.coord = ids.coord_id,
                                             .size = ids.size_id,
                                             .answer = ids.answer_id,
                                             .num_answers_fed_again = ids.num_answer_ids_fed_again,
                                             .start_ground_points = ids.start_ground_points_id,
                                             .end_ground = ids.end_ground_id});
    SkillResult result;
    std::string streamed;
    for (const CommittedToken& token : tokens) {
      streamed += decoder->push({token.token, token.x, token.y, token.confidence});
    }
    streamed += decoder->finish();
    decoder->fill(result);
    EXPECT_EQ(streamed, result.text);
    return result;
  }

  void expect_grounding(const Reasoning& reasoning, const boost::json::array& wanted) {
    ASSERT_EQ(reasoning.grounding.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Grounding& part = reasoning.grounding[i];
      EXPECT_EQ(part.start_idx, wanted[i].at("start_idx").to_number<int>());
      EXPECT_EQ(part.end_idx, wanted[i].at("end_idx").to_number<int>());
      const auto& points = wanted[i].at("points").as_array();
      ASSERT_EQ(part.points.size(), points.size());
      for (std::size_t p = 0; p < points.size(); ++p) {
        EXPECT_FLOAT_EQ(part.points[p].x, points[p].at(0).to_number<float>());
        EXPECT_FLOAT_EQ(part.points[p].y, points[p].at(1).to_number<float>());
      }
    }
  }

  testing_files::TemporaryFolder folder_;
  boost::json::object variant_;
  RealHostClock clock_;
  std::unique_ptr<LoadedModel> model_;
  std::shared_ptr<CropPool> crops_;
  std::unique_ptr<Loop> loop_;
};

TEST_P(ReasoningParityTest, TokensTextOffsetsAndPointsAreTheOracles) {
  const auto& requests = variant_.at("requests").as_array();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    const boost::json::object& wanted = requests[i].as_object();
    const SkillRequest request = request_of(wanted);
    const ReasonedTokens done = run(request);
    ASSERT_TRUE(done.status.ok()) << done.status.to_string();
    EXPECT_EQ(finish_reason_name(done.reason), std::string(wanted.at("finish_reason").as_string()));
    std::vector<std::int32_t> tokens, expected;
    for (const CommittedToken& token : done.tokens) tokens.push_back(token.token.value);
    for (const auto& id : wanted.at("token_ids").as_array()) {
      expected.push_back(id.to_number<std::int32_t>());
    }
    EXPECT_EQ(tokens, expected);
    const SkillResult result = answer_of(request, done.tokens);
    ASSERT_TRUE(result.reasoning);
    EXPECT_EQ(result.reasoning->text, std::string(wanted.at("reasoning_text").as_string()));
    EXPECT_EQ(result.text, std::string(wanted.at("answer").as_string()));
    expect_grounding(*result.reasoning, wanted.at("grounding").as_array());
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, ReasoningParityTest, testing::Range(0, 3));

// Else the goldens would show nothing.
TEST(ReasoningGoldens, HavePointsEndsAndWhatIsForbidden) {
  int num_points = 0, num_limits = 0, num_stops = 0, num_sizes = 0;
  for (const auto& variant : reasoning_golden().at("variants").as_array()) {
    for (const auto& request : variant.at("requests").as_array()) {
      for (const auto& part : request.at("grounding").as_array()) {
        num_points += static_cast<int>(part.at("points").as_array().size());
      }
      const bool at_limit = request.at("finish_reason").as_string() == "length";
      (at_limit ? num_limits : num_stops) += 1;
      for (const auto& id : request.at("token_ids").as_array()) {
        const bool is_size = id.to_number<int>() == 6;
        num_sizes += is_size && variant.at("denied").as_array().empty() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_points, 5);
  EXPECT_GT(num_limits, 0);
  EXPECT_GT(num_stops, 0);
  EXPECT_GT(num_sizes, 0) << "nobody samples what is denied elsewhere";
}

}  // namespace
}  // namespace gapless
