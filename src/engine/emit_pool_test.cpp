// How answers end: at a stop string with tokens still in flight, and when the emit workers are ended.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "engine/emit.h"

namespace gapless {
namespace {

// Notes what it hears. When it has a gate, its first text waits there.
struct GatedSink : ResponseSink {
  void on_text(std::string_view chunk, int) override {
    if (gate && text.empty()) {
      reached.set_value();
      gate->wait();
    }
    text += chunk;
    ++num_texts;
  }
  void on_done(const SkillResult& done) override {
    result = done;
    ended.set_value();
  }
  void on_error(const Status&) override { ended.set_value(); }

  std::optional<std::shared_future<void>> gate;
  std::promise<void> reached;
  std::promise<void> ended;
  std::atomic<std::size_t> num_texts{0};
  std::string text;
  SkillResult result;
};

class EmitPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(GAPLESS_SOURCE_DIR "/models/tiny/tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_.emplace(std::move(loaded).value());
  }

  // A query whose events go to sink_.
  std::shared_ptr<ActiveRequest> make_active(EmitPool& pool, std::vector<std::string> stop = {}) {
    SkillRequest request;
    request.settings.stop = std::move(stop);
    ActiveRequest::Setup setup;
    setup.id = RequestId(1);
    setup.skill = request.skill;
    setup.decoder = make_skill_decoder(request, *tokenizer_, {TokenId(5), TokenId(6)});
    setup.sink = sink_;
    setup.end_early = [this] { ++num_ended_early_; };
    setup.on_retired = [this] { ++num_retired_; };
    return std::make_shared<ActiveRequest>(std::move(setup), pool);
  }
  std::vector<TokenId> ids_of(const std::string& text) { return tokenizer_->encode(text).value(); }

  std::optional<Tokenizer> tokenizer_;
  std::shared_ptr<GatedSink> sink_ = std::make_shared<GatedSink>();
  int num_ended_early_ = 0;
  int num_retired_ = 0;
};

// The engine hears of a stop string a few steps later, and cancels; how many depends on the depth.
TEST_F(EmitPoolTest, TokensBehindAStopStringAreNotCounted) {
  {
    EmitPool pool(1);
    const auto active = make_active(pool, {"yz"});
    const std::vector<TokenId> ids = ids_of("xyyzxx");
    ASSERT_EQ(ids.size(), 6u);
    for (const TokenId id : ids) active->on_token({.token = id});
    active->on_finished(FinishReason::kCancelled, ok_status(), {});
  }
  EXPECT_EQ(sink_->text, "xy");
  EXPECT_EQ(sink_->result.metrics.output_tokens, 4);
  EXPECT_EQ(num_ended_early_, 1);
}

TEST_F(EmitPoolTest, TimesOfAnAnswerAreMillisecondsBetweenItsEvents) {
  {
    EmitPool pool(1);
    const auto active = make_active(pool);
    active->on_token({.token = ids_of("x")[0]});
    active->on_finished(FinishReason::kLength, ok_status(),
                        {.submitted_ns = 1'000'000,
                         .prefill_launched_ns = 3'000'000,
                         .first_token_ns = 7'000'000,
                         .finished_ns = 20'000'000});
  }
  EXPECT_DOUBLE_EQ(sink_->result.metrics.ttft_ms, 6);
  EXPECT_DOUBLE_EQ(sink_->result.metrics.prefill_time_ms, 4);
  EXPECT_DOUBLE_EQ(sink_->result.metrics.decode_time_ms, 13);
}

// A worker that has nothing to do sleeps, and one token wakes it.
TEST_F(EmitPoolTest, OneTokenAloneIsEmitted) {
  EmitPool pool(1);
  const auto active = make_active(pool);
  const TokenId id = ids_of("x")[0];
  for (std::size_t count = 1; count <= 20; ++count) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    active->on_token({.token = id});
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (sink_->num_texts < count && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    ASSERT_EQ(sink_->num_texts, count);
  }
}

TEST_F(EmitPoolTest, WhatIsQueuedWhenThePoolEndsIsEmitted) {
  std::promise<void> open;
  sink_->gate = open.get_future().share();
  auto pool = std::make_optional<EmitPool>(1);
  const auto active = make_active(*pool);
  const std::vector<TokenId> ids = ids_of("xy");
  ASSERT_EQ(ids.size(), 2u);
  active->on_token({.token = ids[0]});
  sink_->reached.get_future().wait();
  active->on_token({.token = ids[1]});
  active->on_finished(FinishReason::kLength, ok_status(), {});
  std::thread end([&] { pool.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits for the worker by now
  open.set_value();
  end.join();
  EXPECT_EQ(sink_->text, "xy");
  EXPECT_EQ(sink_->result.metrics.output_tokens, 2);
  EXPECT_EQ(num_retired_, 1);
}

}  // namespace
}  // namespace gapless
