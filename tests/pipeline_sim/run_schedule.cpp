#include "tests/pipeline_sim/run_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/pipeline_sim/request_maker.h"

namespace gapless {
namespace {

struct Recorder : TokenSink {
  std::vector<CommittedToken> tokens;
  int num_finished = 0;
  bool token_after_end = false;
  FinishReason reason = FinishReason::kError;
  Status status;
  std::function<void(int)> on_nth_token;

  void on_token(const CommittedToken& token) override {
    token_after_end |= num_finished > 0;
    tokens.push_back(token);
    if (on_nth_token) on_nth_token(static_cast<int>(tokens.size()) - 1);
  }
  void on_finished(FinishReason why, const Status& what, const SequenceTimes&) override {
    ++num_finished;
    reason = why;
    status = what;
  }
};

class Run {
 public:
  Run(const Schedule& schedule, const SimRunOptions& options)
      : schedule_(schedule), options_(options), device_(schedule.device) {}

  SimVerdict go() {
    Status status = prepare();
    if (!status.ok()) {
      // A fault that hits the start-up is not this test's matter; it must only be reported.
      if (!schedule_.has_faults()) violation("create: " + status.to_string());
      return std::move(verdict_);
    }
    play();
    if (verdict_.violation.empty()) check_end();
    return std::move(verdict_);
  }

 private:
  struct Live {
    std::shared_ptr<Recorder> sink;
    SequenceId id;
    bool submitted = false;
    bool accepted = false;
    bool cancelled = false;
  };

  void violation(std::string what) {
    if (verdict_.violation.empty()) {
      verdict_.violation = fmt::format("{} ({})", what, describe(schedule_));
    }
  }

  Status prepare() {
    GAPLESS_ASSIGN_OR_RETURN(model_, FakeModel::create(device_, schedule_.model));
    GAPLESS_ASSIGN_OR_RETURN(maker_, RequestMaker::create(device_, schedule_));
    GAPLESS_ASSIGN_OR_RETURN(loop_,
                             Loop::create(device_, *model_, device_.host_clock(), schedule_.loop));
    live_.resize(schedule_.requests.size());
    start_ns_ = device_.now_ns();
    return ok_status();
  }

  void submit(std::size_t i) {
    const SimRequest& request = schedule_.requests[i];
    Live& live = live_[i];
    live.submitted = true;
    live.sink = std::make_shared<Recorder>();
    if (request.cancel_at_token >= 0) {
      live.sink->on_nth_token = [this, i](int token) {
        if (token == schedule_.requests[i].cancel_at_token) cancel(i);
      };
    }
    auto id = loop_->submit(maker_->prompt(request), live.sink);
    live.accepted = id.ok();
    if (id.ok()) {
      live.id = *id;
      return;
    }
    ++verdict_.stats.num_refused;
    const bool may_refuse =
        id.status().code() == StatusCode::kResourceExhausted ||
        (schedule_.has_faults() && id.status().code() == StatusCode::kDeviceError);
    if (!may_refuse) violation("refused: " + id.status().to_string());
  }

  void cancel(std::size_t i) {
    live_[i].cancelled = true;
    loop_->cancel(live_[i].id);
  }

  // What is due now. The time of the next event, or -1.
  std::int64_t deliver_events() {
    const std::int64_t now = device_.now_ns() - start_ns_;
    std::int64_t next = -1;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      const SimRequest& request = schedule_.requests[i];
      if (!live_[i].submitted) {
        if (request.arrival_ns <= now) {
          submit(i);
        } else if (next < 0 || request.arrival_ns < next) {
          next = request.arrival_ns;
        }
      }
      if (live_[i].accepted && !live_[i].cancelled && request.cancel_ns >= 0 &&
          live_[i].sink->num_finished == 0) {
        if (request.cancel_ns <= now) {
          cancel(i);
        } else if (next < 0 || request.cancel_ns < next) {
          next = request.cancel_ns;
        }
      }
    }
    return next < 0 ? -1 : next + start_ns_;
  }

  void play() {
    constexpr int kMaxTicks = 20'000;
    for (int tick = 0; tick < kMaxTicks; ++tick) {
      const std::int64_t next_event_ns = deliver_events();
      const Loop::Tick result = loop_->tick();
      check_tick();
      if (!verdict_.violation.empty()) return;
      if (options_.after_tick) {
        options_.after_tick(*loop_);
        check_tick();
        if (!verdict_.violation.empty()) return;
      }
      if (result == Loop::Tick::kWorked) continue;
      if (next_event_ns < 0) return;
      device_.host_busy(std::max<std::int64_t>(1, next_event_ns - device_.now_ns()));
    }
    violation("the loop does not come to an end");
  }

  // The states of the device are all of the time, at every moment, and none goes back.
  void check_device_time() {
    const DeviceTime time = loop_->ledger().device_time(device_.now_ns());
    const DeviceTime growth = time - last_time_;
    last_time_ = time;
    if (time.all_ns() != device_.now_ns() - start_ns_) {
      violation(fmt::format("ledger: {} ns in all states after {} ns", time.all_ns(),
                            device_.now_ns() - start_ns_));
    }
    if (growth.busy_ns() < 0 || growth.preparing_ns() < 0 || growth.starved_ns() < 0 ||
        growth.bubble_ns() < 0) {
      violation("ledger: a state goes back");
    }
  }

  void check_tick() {
    check_device_time();
    if (options_.check_state) {
      if (const Status status = loop_->state().check(); !status.ok()) violation(status.message());
    }
    if (loop_->state().num_in_flight() > schedule_.loop.depth) violation("more steps than slots");
    const Loop::Counts counts = loop_->counts();
    const StepLimits& limits = schedule_.model.limits;
    if (counts.running > limits.max_seats) violation("more sequences run than there are seats");
    if (counts.running < limits.max_seats && counts.seats.rows_in_use == limits.num_rows()) {
      violation("a seat is free and no row");
    }
    verdict_.stats.most_running = std::max(verdict_.stats.most_running, counts.running);
    verdict_.stats.seated_beside_zombies |=
        counts.running > 0 && counts.seats.rows_in_use > limits.max_seats;
    if (device_.num_races() > 0) violation("I4: " + device_.first_race());
    if (model_->num_faults() > 0)
      violation("I4 or I6: a kernel's inputs or pages changed under it");
    if (!schedule_.has_faults() && loop_->forbidden_calls() != 0) {
      violation(fmt::format("I7: {} forbidden calls", loop_->forbidden_calls()));
    }
  }

  void check_end() {
    const Loop::Counts counts = loop_->counts();
    if (counts.waiting != 0 || counts.steps_in_flight != 0 || counts.seats.rows_in_use != 0 ||
        counts.seats.image_slots_in_use != 0) {
      violation("rows, image slots or steps leak");
    }
    if (counts.seats.pages_in_use != loop_->num_cached_pages()) {
      violation(fmt::format("pages leak: {} in use, {} cached", counts.seats.pages_in_use,
                            loop_->num_cached_pages()));
    }
    const LedgerTotals totals = loop_->ledger().totals();
    verdict_.stats.num_steps = totals.steps();
    verdict_.stats.num_zombie_rows = totals.num_zombie_rows;
    if (!schedule_.has_faults() && device_.counters().event_waits != totals.steps()) {
      violation(fmt::format("I7: {} event waits for {} steps", device_.counters().event_waits,
                            totals.steps()));
    }
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (live_[i].accepted) check_answer(i);
    }
    // A launch that fails takes one step with it, no more.
    const auto most = static_cast<int>(schedule_.device.faults.failing_calls.size()) *
                      schedule_.model.limits.max_seats;
    if (!verdict_.stats.device_lost && verdict_.stats.num_failed > most) {
      violation(fmt::format("{} sequences failed", verdict_.stats.num_failed));
    }
  }

  void check_answer(std::size_t i) {
    const SimRequest& request = schedule_.requests[i];
    const Recorder& sink = *live_[i].sink;
    const auto blame = [&](std::string_view what) {
      violation(fmt::format("request {}: {}", i, what));
    };
    if (sink.num_finished != 1) {
      return blame(fmt::format("finished {} times", sink.num_finished));
    }
    if (sink.token_after_end) return blame("I6: a token after its end");

    const FakeAnswer expected = maker_->expected(request);
    const std::size_t num_tokens = sink.tokens.size();
    if (num_tokens > expected.tokens.size()) return blame("I8: more tokens than the oracle's");
    for (std::size_t t = 0; t < num_tokens; ++t) {
      const CommittedToken& got = sink.tokens[t];
      const CommittedToken& want = expected.tokens[t];
      if (got.token != want.token || got.x != want.x || got.y != want.y) {
        return blame(fmt::format("I8: token {} is {}, the oracle says {}", t, got.token.value,
                                 want.token.value));
      }
      if (got.confidence.token != want.confidence.token) {
        return blame(fmt::format("I8: how sure token {} is, is not the oracle's", t));
      }
      if (got.top_logprobs != want.top_logprobs) {
        return blame(fmt::format("I8: the alternatives of token {} are not the oracle's", t));
      }
    }
    switch (sink.reason) {
      case FinishReason::kStop:
      case FinishReason::kLength:
        ++(sink.reason == FinishReason::kStop ? verdict_.stats.num_stopped
                                              : verdict_.stats.num_length);
        if (sink.reason != expected.reason || num_tokens != expected.tokens.size()) {
          return blame("I8: ended elsewhere than the oracle");
        }
        return;
      case FinishReason::kCancelled:
        ++verdict_.stats.num_cancelled;
        if (!live_[i].cancelled) blame("cancelled, but nobody asked");
        return;
      case FinishReason::kError:
        ++verdict_.stats.num_failed;
        verdict_.stats.device_lost |= sink.status.message().find("lost") != std::string::npos;
        if (sink.status.code() != StatusCode::kDeviceError || sink.status.message().empty()) {
          return blame("failed without saying why: " + sink.status.to_string());
        }
        if (!schedule_.has_faults()) blame("failed: " + sink.status.to_string());
        return;
    }
  }

  const Schedule& schedule_;
  const SimRunOptions& options_;
  SimDevice device_;
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<RequestMaker> maker_;
  std::unique_ptr<Loop> loop_;
  DeviceTime last_time_;
  std::vector<Live> live_;
  std::int64_t start_ns_ = 0;
  SimVerdict verdict_;
};

}  // namespace

SimVerdict run_schedule(const Schedule& schedule, const SimRunOptions& options) {
  auto run = std::make_unique<Run>(schedule, options);
  SimVerdict verdict = run->go();
  // A loop whose state is broken cannot be stopped in good order; it is kept as it is.
  static auto& graveyard = *new std::vector<std::unique_ptr<Run>>;
  if (!verdict.violation.empty()) graveyard.push_back(std::move(run));
  return verdict;
}

}  // namespace gapless
