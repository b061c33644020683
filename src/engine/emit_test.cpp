// Tokens in at the engine's end, events out at the user's.
#include "engine/emit.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>

#include "base/clock.h"

namespace gapless {
namespace {

// Events as text, in order.
struct Recorder : ResponseSink {
  void on_text(std::string_view chunk, int) override { events += fmt::format("text({})", chunk); }
  void on_reasoning(std::string_view chunk, int) override {
    events += fmt::format("reasoning({})", chunk);
  }
  void on_logprobs(std::vector<TokenLogprob> tokens) override {
    for (const TokenLogprob& token : tokens) {
      events += fmt::format("token({} {}", token.token.text, token.token.logprob);
      for (const ScoredToken& one : token.top)
        events += fmt::format(" {} {}", one.text, one.logprob);
      events += ")";
    }
  }
  void on_done(const SkillResult& result) override {
    events += fmt::format("done({})", result.text);
    done = result;
    ended.set_value();
  }
  void on_error(const Status& status) override {
    events += "error(" + status.message() + ")";
    ended.set_value();
  }
  std::string events;
  SkillResult done;
  std::promise<void> ended;
};

class EmitTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(GAPLESS_SOURCE_DIR "/models/tiny/tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_.emplace(std::move(loaded).value());
  }

  // What the user sees of these tokens. A stop string ends the request as a cancellation.
  std::string events_of(const SkillRequest& request, const std::vector<CommittedToken>& tokens) {
    const auto reason =
        request.settings.stop.empty() ? FinishReason::kLength : FinishReason::kCancelled;
    return emit(request, tokens, reason)->events;
  }

  // The loop ends the request with `reason` after these tokens.
  std::shared_ptr<Recorder> emit(const SkillRequest& request,
                                 const std::vector<CommittedToken>& tokens, FinishReason reason) {
    EmitPool pool(1);
    auto sink = std::make_shared<Recorder>();
    ended_early_ = false;
    ActiveRequest::Setup setup;
    setup.id = RequestId(1);
    setup.skill = request.skill;
    setup.decoder = make_skill_decoder(
        request, *tokenizer_, {.coord = TokenId(5), .size = TokenId(6), .answer = TokenId(3)});
    if (request.settings.logprobs) setup.tokenizer = &*tokenizer_;
    setup.sink = sink;
    setup.end_early = [this] { ended_early_ = true; };
    setup.on_retired = [] {};
    auto active = std::make_shared<ActiveRequest>(std::move(setup), pool);
    for (const CommittedToken& token : tokens) active->on_token(token);
    active->on_finished(reason, ok_status(), {});
    sink->ended.get_future().wait();
    return sink;
  }

  // One token for each of the text's tokens, the n-th with logprob -n.
  std::vector<CommittedToken> tokens_of(const std::string& text) {
    std::vector<CommittedToken> tokens;
    for (const TokenId id : tokenizer_->encode(text).value()) {
      tokens.push_back({.token = id, .logprob = -static_cast<float>(tokens.size()) - 1});
    }
    return tokens;
  }

  static SkillRequest query(std::vector<std::string> stop = {}) {
    SkillRequest request;
    request.settings.logprobs = true;
    request.settings.stop = std::move(stop);
    return request;
  }

  std::optional<Tokenizer> tokenizer_;
  bool ended_early_ = false;  // the last request asked for its end
};

TEST_F(EmitTest, LogprobsComeJustBeforeTheirText) {
  std::vector<CommittedToken> tokens = tokens_of("x\u2605");
  ASSERT_EQ(tokens.size(), 4u);
  tokens[0].top_logprobs = {{tokens[0].token.value, -1}, {tokens[1].token.value, -7}, {5, -9999}};
  EXPECT_EQ(events_of(query(), tokens),
            "token(x -1 x -1 \\xe2 -7 <|coord|> -9999)text(x)"
            "token(\\xe2 -2)token(\\x98 -3)token(\\x85 -4)text(\u2605)done(x\u2605)");
}

TEST_F(EmitTest, NobodyHearsOfLogprobsUnasked) {
  SkillRequest request = query();
  request.settings.logprobs = false;
  EXPECT_EQ(events_of(request, tokens_of("xy")), "text(x)text(y)done(xy)");
}

TEST_F(EmitTest, HeldBackTokensComeWithTheirTextOrNever) {
  EXPECT_EQ(events_of(query({"yz"}), tokens_of("xyyzx")),
            "token(x -1)text(x)token(y -2)text(y)done(xy)");
  EXPECT_TRUE(ended_early_);
  std::vector<CommittedToken> cut = tokens_of("xy");
  cut.pop_back();
  cut.push_back(tokens_of("\u2605")[0]);  // the length limit splits a character
  EXPECT_EQ(events_of(query(), cut), "token(x -1)text(x)token(\\xe2 -1)text(\uFFFD)done(x\uFFFD)");
}

TEST_F(EmitTest, TheWayToTheFirstTextIsAccountedForStageByStage) {
  EmitPool pool(1);
  auto sink = std::make_shared<Recorder>();
  ActiveRequest::Setup setup;
  setup.id = RequestId(1);
  setup.decoder = make_skill_decoder(query(), *tokenizer_, {TokenId(5), TokenId(6)});
  setup.sink = sink;
  setup.end_early = [] {};
  setup.on_retired = [] {};
  auto active = std::make_shared<ActiveRequest>(std::move(setup), pool);
  StageTimes preparation;
  preparation[RequestStage::kRead] = 3;
  preparation[RequestStage::kDecode] = 5;
  const std::int64_t now_ns = host_now_ns();
  active->set_preparation(preparation, now_ns - 100);
  active->on_token(tokens_of("x")[0]);
  active->on_finished(FinishReason::kLength, ok_status(),
                      {.queued_ns = now_ns - 90,
                       .first_launched_ns = now_ns - 70,
                       .first_token_ns = now_ns - 30,
                       .finished_ns = now_ns});
  sink->ended.get_future().wait();
  EXPECT_EQ(sink->done.metrics.stages[RequestStage::kRead], 3);
  EXPECT_EQ(sink->done.metrics.stages[RequestStage::kDecode], 5);
  EXPECT_EQ(sink->done.metrics.stages[RequestStage::kPrepare], 10);
  EXPECT_EQ(sink->done.metrics.stages[RequestStage::kAdmit], 20);
  EXPECT_EQ(sink->done.metrics.stages[RequestStage::kDevice], 40);
  EXPECT_GE(sink->done.metrics.stages[RequestStage::kEmit], 30) << "until the text was handed on";
}

// Whatever the loop believes: the length limit may fall on the stop string's last token, or on one of
// those that were in flight behind it, and so may the end token or a failure.
TEST_F(EmitTest, AStopStringIsAStop) {
  for (const int num_behind : {0, 1, 5}) {
    for (const FinishReason reason : {FinishReason::kLength, FinishReason::kStop,
                                      FinishReason::kCancelled, FinishReason::kError}) {
      SCOPED_TRACE(fmt::format("{} behind, {}", num_behind, finish_reason_name(reason)));
      const auto seen =
          emit(query({"yz"}), tokens_of("xyyz" + std::string(num_behind, 'x')), reason);
      EXPECT_TRUE(ended_early_);
      EXPECT_EQ(seen->done.text, "xy");
      EXPECT_EQ(seen->done.finish_reason, FinishReason::kStop);
      EXPECT_EQ(seen->done.metrics.output_tokens, 4) << "the stop string was sampled too";
    }
  }
  // One that the text never reaches leaves the reason alone, and its beginning in the text.
  const auto seen = emit(query({"yz"}), tokens_of("xyy"), FinishReason::kLength);
  EXPECT_FALSE(ended_early_);
  EXPECT_EQ(seen->done.text, "xyy");
  EXPECT_EQ(seen->done.finish_reason, FinishReason::kLength);
  EXPECT_EQ(seen->done.metrics.output_tokens, 3);
}

// A token's text may be known at the end only.
TEST_F(EmitTest, AStopStringInTheHeldBackTextIsAStop) {
  std::vector<CommittedToken> tokens = tokens_of("x");
  tokens.push_back(tokens_of("\u2605")[0]);  // the length limit splits a character
  const auto seen = emit(query({"\uFFFD"}), tokens, FinishReason::kLength);
  EXPECT_EQ(seen->done.text, "x");
  EXPECT_EQ(seen->done.finish_reason, FinishReason::kStop);
  EXPECT_EQ(seen->done.metrics.output_tokens, 2);
}

TEST_F(EmitTest, LogprobsOfValues) {
  SkillRequest request = query();
  request.skill = Skill::kPoint;
  EXPECT_EQ(events_of(request, {{.token = TokenId(5), .x = 0.5f, .logprob = -1},
                                {.token = TokenId(5), .x = 0.25f, .logprob = -2}}),
            "token(<|coord|> -1)token(<|coord|> -2)done()");
}

TEST_F(EmitTest, ReasoningComesBeforeTheAnswerAndHasNoLogprobs) {
  SkillRequest request;
  request.reasoning = true;
  request.settings.logprobs = true;
  std::vector<CommittedToken> tokens = tokens_of("x");
  tokens.push_back({.token = TokenId(3), .logprob = -9});
  for (const CommittedToken& token : tokens_of("y")) tokens.push_back(token);
  EXPECT_EQ(events_of(request, tokens), "reasoning(x)token(y -1)text(y)done(y)");
  const auto told = emit(request, tokens, FinishReason::kStop);
  EXPECT_EQ(told->done.metrics.output_tokens, 3);
  EXPECT_EQ(told->done.metrics.reasoning_tokens, 2);
}

}  // namespace
}  // namespace gapless
