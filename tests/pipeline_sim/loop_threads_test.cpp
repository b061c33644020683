// The real engine thread on the asynchronous CPU device: clients on several threads submit, cancel
// and go away. ThreadSanitizer (preset cpu-tsan) finds a buffer that is reused too early.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/host_clock.h"
#include "tests/pipeline_sim/request_maker.h"

namespace gapless {
namespace {

class WaitingSink : public TokenSink {
 public:
  void on_token(const CommittedToken& token) override {
    std::lock_guard lock(mutex_);
    tokens_.push_back(token);
  }
  void on_finished(FinishReason reason, const Status&, const SequenceTimes& times) override {
    std::lock_guard lock(mutex_);
    ++num_finished_;
    reason_ = reason;
    times_ = times;
    finished_.notify_all();
  }
  FinishReason wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return num_finished_ > 0; });
    return reason_;
  }
  std::vector<CommittedToken> tokens() {
    std::lock_guard lock(mutex_);
    return tokens_;
  }
  SequenceTimes times() {
    std::lock_guard lock(mutex_);
    return times_;
  }
  int num_finished() {
    std::lock_guard lock(mutex_);
    return num_finished_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<CommittedToken> tokens_;
  SequenceTimes times_;
  FinishReason reason_ = FinishReason::kError;
  int num_finished_ = 0;
};

void expect_answer(const FakeAnswer& expected, const std::vector<CommittedToken>& tokens,
                   bool whole) {
  if (whole) {
    ASSERT_EQ(tokens.size(), expected.tokens.size());
  }
  ASSERT_LE(tokens.size(), expected.tokens.size());
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    ASSERT_EQ(tokens[t].token, expected.tokens[t].token) << "I8: token " << t;
    ASSERT_EQ(tokens[t].x, expected.tokens[t].x);
  }
}

// A CPU device, a fake model and a loop of some depth.
class LoopThreadsTest : public ::testing::TestWithParam<int> {
 protected:
  LoopThreadsTest() {
    schedule_ = make_schedule(7);
    schedule_.loop = LoopOptions{.depth = GetParam(), .max_cached_prefixes = 3};
    schedule_.model.limits = FakeModelConfig::small().limits;
    device_ = open_cpu_device();
    model_ = FakeModel::create(*device_, schedule_.model).value();
    maker_ = RequestMaker::create(*device_, schedule_).value();
    loop_ = Loop::create(*device_, *model_, clock_, schedule_.loop).value();
  }

  // None, one, or two.
  std::vector<int> images_of(std::uint32_t i) const {
    if (i % 2 != 0) return {};
    const auto num_images = static_cast<std::uint32_t>(schedule_.images.size());
    std::vector<int> images = {static_cast<int>(i / 2 % num_images)};
    if (i % 3 == 0) images.push_back(static_cast<int>((i / 2 + 1) % num_images));
    return images;
  }

  SimRequest request(std::uint32_t i) {
    return {.kind = static_cast<RowKind>(i % 4),
            .num_text_tokens = 1 + static_cast<int>(i % 9),
            .images = images_of(i),
            .max_generated = 1 + static_cast<int>(i % 11),
            .stop_after = i % 4 == 0 ? static_cast<int>(i % 7) : -1,
            .seed = i * 17 + 1};
  }

  void expect_nothing_leaks() {
    const Loop::Counts counts = loop_->counts();
    EXPECT_EQ(counts.waiting, 0);
    EXPECT_EQ(counts.steps_in_flight, 0);
    EXPECT_EQ(counts.seats.rows_in_use, 0);
    EXPECT_EQ(counts.seats.image_slots_in_use, 0);
    EXPECT_EQ(counts.seats.pages_in_use, loop_->num_cached_pages());
    EXPECT_EQ(model_->num_faults(), 0);
    EXPECT_EQ(loop_->forbidden_calls(), 0) << "I7";
  }

  Schedule schedule_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<RequestMaker> maker_;
  RealHostClock clock_;
  std::unique_ptr<Loop> loop_;
};

TEST_P(LoopThreadsTest, ClientsOnSeveralThreadsGetTheirAnswersI8) {
  constexpr std::uint32_t kPerClient = 40;
  loop_->start();
  std::atomic<int> num_cancelled{0};
  const auto client = [&](std::uint32_t first) {
    for (std::uint32_t i = first; i < first + kPerClient; ++i) {
      const SimRequest wanted = request(i);
      auto sink = std::make_shared<WaitingSink>();
      const auto id = loop_->submit(maker_->prompt(wanted), sink);
      ASSERT_TRUE(id.ok()) << id.status().to_string();
      if (i % 5 == 0) loop_->cancel(*id);
      const FinishReason reason = sink->wait();
      const bool cancelled = reason == FinishReason::kCancelled;
      if (cancelled) ++num_cancelled;
      EXPECT_TRUE(cancelled ? i % 5 == 0 : reason == maker_->expected(wanted).reason);
      expect_answer(maker_->expected(wanted), sink->tokens(), !cancelled);
    }
  };
  std::vector<std::thread> clients;
  for (std::uint32_t c = 0; c < 4; ++c) clients.emplace_back(client, c * 1000);
  for (std::thread& thread : clients) thread.join();
  loop_->drain();
  expect_nothing_leaks();
}

TEST_P(LoopThreadsTest, DrainFinishesWhatWasAccepted) {
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (std::uint32_t i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>());
    ASSERT_TRUE(loop_->submit(maker_->prompt(request(i)), sinks.back()).ok());
  }
  loop_->start();
  loop_->drain();
  for (std::uint32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(sinks[i]->num_finished(), 1);
    expect_answer(maker_->expected(request(i)), sinks[i]->tokens(), true);
    const SequenceTimes times = sinks[i]->times();
    EXPECT_LE(times.submitted_ns, times.prefill_launched_ns);
    EXPECT_LE(times.prefill_launched_ns, times.finished_ns);
  }
  const auto late = loop_->submit(maker_->prompt(request(0)), sinks[0]);
  EXPECT_EQ(late.status().code(), StatusCode::kUnavailable);
  expect_nothing_leaks();
}

TEST_P(LoopThreadsTest, StopCancelsWhatWasAccepted) {
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  loop_->start();
  for (std::uint32_t i = 0; i < 30; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>());
    ASSERT_TRUE(loop_->submit(maker_->prompt(request(i)), sinks.back()).ok());
  }
  loop_->stop();
  for (std::uint32_t i = 0; i < 30; ++i) {
    EXPECT_EQ(sinks[i]->num_finished(), 1);
    expect_answer(maker_->expected(request(i)), sinks[i]->tokens(), false);
  }
  expect_nothing_leaks();
}

INSTANTIATE_TEST_SUITE_P(Depth, LoopThreadsTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace gapless
