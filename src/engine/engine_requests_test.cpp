// What the engine promises its callers, with the model that ships: bounds, cancellation, ends.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "image/write_png.h"

namespace gapless {
namespace {

struct WaitingSink final : ResponseSink {
  void on_text(std::string_view, int) override {
    if (!has_text.exchange(true)) began.set_value();
  }
  void on_done(const SkillResult& result) override { ended.set_value(result); }
  void on_error(const Status& status) override { ended.set_value(status); }
  std::atomic<bool> has_text{false};
  std::promise<void> began;
  std::promise<StatusOr<SkillResult>> ended;
};

class EngineRequestsTest : public ::testing::Test {
 protected:
  void start(EngineOptions options = {}, const ModelOptions& of_model = {}) {
    auto model = load_model(open_device("cpu").value(), "", of_model);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    engine_ = Engine::start(std::move(model).value(), options).value();
  }
  static SkillRequest question(int max_tokens) {
    SkillRequest request;
    request.text = "why?";
    request.settings.max_tokens = max_tokens;
    request.settings.ignore_eos = true;
    return request;
  }
  std::shared_ptr<WaitingSink> submit(SkillRequest request) {
    auto sink = std::make_shared<WaitingSink>();
    const auto id = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    if (id.ok()) last_id_ = *id;
    return sink;
  }
  // A request is let go just after its last event.
  bool becomes_idle() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (engine_->num_active() > 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    return engine_->num_active() == 0;
  }

  std::unique_ptr<Engine> engine_;
  RequestId last_id_;
};

constexpr int kLong = 1500;

TEST_F(EngineRequestsTest, OneRequestTooManyIsRefusedAndAnEndMakesRoom) {
  EngineOptions options;
  options.max_active_requests = 1;
  ASSERT_NO_FATAL_FAILURE(start(options));
  const auto running = submit(question(kLong));
  const auto refused = engine_->submit(question(1), std::make_shared<WaitingSink>());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  // Of what there is never room for, later is no better.
  const auto never = engine_->submit_choices(
      question(1), {std::make_shared<WaitingSink>(), std::make_shared<WaitingSink>()});
  EXPECT_EQ(never.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(never.status().field(), "n");
  engine_->cancel(last_id_);
  (void)running->ended.get_future().get();
  ASSERT_TRUE(becomes_idle());
  EXPECT_EQ(engine_->run(question(3))->metrics.output_tokens, 3);
}

// A client's next request may be there before the engine has let go of the one that was answered.
TEST_F(EngineRequestsTest, WhoeverHasAnAnswerMayAskAgainAtOnce) {
  struct AskingSink final : ResponseSink {
    void on_text(std::string_view, int) override {}
    void on_done(const SkillResult&) override { asked.set_value(ask()); }
    void on_error(const Status& status) override { asked.set_value(status); }
    std::function<Status()> ask;
    std::promise<Status> asked;
  };
  EngineOptions options;
  options.max_active_requests = 1;
  ASSERT_NO_FATAL_FAILURE(start(options));
  const auto next = std::make_shared<WaitingSink>();
  const auto asking = std::make_shared<AskingSink>();
  asking->ask = [&] { return engine_->submit(question(1), next).status(); };
  ASSERT_TRUE(engine_->submit(question(1), asking).ok());
  const Status asked = asking->asked.get_future().get();
  ASSERT_TRUE(asked.ok()) << asked.message();
  EXPECT_TRUE(next->ended.get_future().get().ok());
}

// All of them have a seat at once, at every depth.
TEST_F(EngineRequestsTest, TwoHundredRequestsRunTogether) {
  constexpr int kCount = 200;
  const auto ask = [](int i) {
    SkillRequest request = question(10 + i % 7);
    request.text = "why is it number " + std::to_string(i) + "?";
    request.settings.temperature = 0.0f;
    return request;
  };
  std::vector<std::string> alone;
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    EngineOptions options;
    options.loop.depth = depth;
    ASSERT_NO_FATAL_FAILURE(start(
        options,
        {.kv_cache_bytes = std::size_t{1} << 30, .max_rows = kCount, .adjust_limits = nullptr}));
    for (int i = 0; depth == 1 && i < kCount; ++i) alone.push_back(engine_->run(ask(i))->text);
    std::vector<std::shared_ptr<WaitingSink>> sinks;
    for (int i = 0; i < kCount; ++i) sinks.push_back(submit(ask(i)));
    for (int i = 0; i < kCount; ++i) {
      const auto answer = sinks[static_cast<std::size_t>(i)]->ended.get_future().get();
      ASSERT_TRUE(answer.ok()) << answer.status().to_string();
      EXPECT_EQ(answer->metrics.output_tokens, 10 + i % 7);
      EXPECT_EQ(answer->text, alone[static_cast<std::size_t>(i)]) << i << " at depth " << depth;
    }
    ASSERT_TRUE(becomes_idle());
  }
}

TEST_F(EngineRequestsTest, ACancelledRequestEndsBeforeItsAnswer) {
  ASSERT_NO_FATAL_FAILURE(start());
  const auto running = submit(question(kLong));
  running->began.get_future().wait();
  engine_->cancel(last_id_);
  const StatusOr<SkillResult> end = running->ended.get_future().get();
  ASSERT_FALSE(end.ok()) << "it ran to its end";
  EXPECT_EQ(end.status().code(), StatusCode::kCancelled);
}

TEST_F(EngineRequestsTest, WhoStillRunsWhenTheEngineGoesIsToldSo) {
  ASSERT_NO_FATAL_FAILURE(start());
  const auto running = submit(question(kLong));
  running->began.get_future().wait();
  const auto waiting = submit(question(kLong));
  engine_.reset();
  for (const auto& sink : {running, waiting}) {
    EXPECT_EQ(sink->ended.get_future().get().status().code(), StatusCode::kCancelled);
  }
}

// There is one decoder. It is done with the broken picture before it takes the other one: the broken
// picture's bytes go in between.
TEST_F(EngineRequestsTest, TheTimeToTheFirstTokenCountsFromTheSubmission) {
  EngineOptions options;
  options.num_preprocess_threads = 1;
  ASSERT_NO_FATAL_FAILURE(start(options));
  constexpr int kSide = 4000;
  Image white{kSide, kSide, {}};
  white.rgb.assign(std::size_t{3} * kSide * kSide, 255);
  const std::vector<std::byte> png = encode_png(white).value();
  std::atomic<std::int64_t> gone_ns{0};
  SkillRequest about_a_picture = question(1);
  about_a_picture.images = {std::shared_ptr<const std::string>(
      new std::string(reinterpret_cast<const char*>(png.data()), png.size() - 20),
      [&](const std::string* bytes) {
        delete bytes;
        gone_ns = host_now_ns();
      })};
  const auto broken = submit(std::move(about_a_picture));
  while (engine_->picture_memory_in_use() == 0 && gone_ns.load() == 0) std::this_thread::yield();
  const std::vector<std::byte> dot = encode_png({1, 1, {255, 255, 255}}).value();
  SkillRequest about_a_dot = question(1);
  about_a_dot.images = {
      std::make_shared<const std::string>(reinterpret_cast<const char*>(dot.data()), dot.size())};
  const auto behind = submit(std::move(about_a_dot));
  const std::int64_t submitted_ns = host_now_ns();
  const StatusOr<SkillResult> answer = behind->ended.get_future().get();
  ASSERT_TRUE(answer.ok()) << answer.status().to_string();
  ASSERT_GT(gone_ns.load(), 0);
  EXPECT_GE(static_cast<double>(submitted_ns) + answer->metrics.ttft_ms * 1e6,
            static_cast<double>(gone_ns.load()));
  EXPECT_EQ(broken->ended.get_future().get().status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace gapless
