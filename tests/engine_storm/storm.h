// What the storms share: requests with known answers, and sinks that notice what must not happen.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/engine_group.h"
#include "skill/response_sink.h"

namespace gapless {

// No storm takes this long; a test that waits longer has found a deadlock.
inline constexpr std::chrono::minutes kDeadlockGuard{5};

// How one request ended. Outlives its sink. Threads: any.
class Outcome {
 public:
  // From the sink.
  void end(StatusOr<SkillResult> result);
  void complain(std::string what);

  bool has_ended() const;
  // Waits for the end.
  StatusOr<SkillResult> wait();
  // What must not have happened: two ends, an event after the end, two events at once, ...
  std::vector<std::string> complaints() const;

 private:
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::vector<StatusOr<SkillResult>> ends_ GAPLESS_GUARDED_BY(mutex_);
  std::vector<std::string> complaints_ GAPLESS_GUARDED_BY(mutex_);
};

class StormSink final : public ResponseSink {
 public:
  explicit StormSink(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}

  // Called once each, on the emit worker: with the first text, and after the end was noted.
  std::function<void()> on_first_text;
  std::function<void()> on_end;

  void on_text(std::string_view chunk, int num_tokens) override;
  void on_logprobs(std::vector<TokenLogprob> tokens) override;
  void on_done(const SkillResult& result) override;
  void on_error(const Status& status) override;

 private:
  class Event;
  void end(StatusOr<SkillResult> result);

  const std::shared_ptr<Outcome> outcome_;
  std::atomic<bool> in_event_{false};
  // As a connection has them: written by whichever emit worker calls, without a lock.
  bool ended_ = false;
  std::string text_;
  int num_tokens_ = 0;
  std::size_t num_logprobs_ = 0;
};

// The shipped model on the CPU.
StatusOr<std::unique_ptr<Engine>> start_storm_engine(const EngineOptions& options);
// Several of them.
StatusOr<std::unique_ptr<EngineGroup>> start_storm_group(int num_devices,
                                                         const EngineOptions& options);

// One of each sort: text and pictures, greedy and seeded, free and constrained both ways, with stop
// strings and log probabilities; and some whose error shows late (a corrupt picture, too long a
// prompt). The same each time, and so is the answer of each.
std::vector<SkillRequest> storm_requests();
// A question whose answer nobody waits for: it takes so long that a cancel comes before its end.
inline constexpr int kLongAnswerTokens = 1200;
SkillRequest long_request();
// A PNG of one colour; different numbers give different pictures.
std::shared_ptr<const std::string> plain_picture(int number);

// Two answers to one request.
::testing::AssertionResult same_answer(const StatusOr<SkillResult>& expected,
                                       const StatusOr<SkillResult>& actual);

}  // namespace gapless
