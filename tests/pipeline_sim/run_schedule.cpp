#include "tests/pipeline_sim/run_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pipeline/seating.h"

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

std::uint64_t constraint_seed(const SimRequest& request) {
  return request.seed * 31ull + 7;
}

class Run {
 public:
  explicit Run(const Schedule& schedule) : schedule_(schedule), device_(schedule.device) {}

  SimVerdict go(const std::function<void(Loop&)>& after_tick) {
    Status status = prepare();
    if (!status.ok()) {
      // A fault that hits the start-up is not this test's matter; it must only be reported.
      if (!schedule_.has_faults()) violation("create: " + status.to_string());
      return std::move(verdict_);
    }
    play(after_tick);
    if (verdict_.violation.empty()) check_end();
    loop_.reset();
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
    GAPLESS_RETURN_IF_ERROR(make_crops());
    GAPLESS_ASSIGN_OR_RETURN(loop_,
                             Loop::create(device_, *model_, device_.host_clock(), schedule_.loop));
    live_.resize(schedule_.requests.size());
    start_ns_ = device_.now_ns();
    return ok_status();
  }

  Status make_crops() {
    std::size_t num_crops = 0;
    for (const SimImage& image : schedule_.images) {
      num_crops += static_cast<std::size_t>(image.num_crops());
    }
    const std::size_t crop_bytes = schedule_.model.crop_bytes;
    // Every second place: crops that are not neighbours are copied one by one.
    GAPLESS_ASSIGN_OR_RETURN(crops_pinned_, device_.allocate_pinned(num_crops * 2 * crop_bytes));
    SimRandom random(schedule_.seed + 1);
    auto* next = crops_pinned_.as<std::uint8_t>();
    for (const SimImage& image : schedule_.images) {
      const bool spread = random.chance(0.5);
      crops_.emplace_back();
      for (int i = 0; i < image.num_crops(); ++i) {
        std::generate_n(next, crop_bytes, [&] { return static_cast<std::uint8_t>(random.next()); });
        crops_.back().push_back(next);
        next += crop_bytes * (spread ? 2 : 1);
      }
    }
    return ok_status();
  }

  PreparedPrompt make_prompt(const SimRequest& request) {
    PreparedPrompt prompt;
    SimRandom random(request.seed);
    if (request.image >= 0) {
      const auto index = static_cast<std::size_t>(request.image);
      const SimImage& image = schedule_.images[index];
      PreparedImage prepared;
      prepared.hash.fill(static_cast<std::uint8_t>(request.image + 1));
      prepared.tile_rows = image.tile_rows;
      prepared.tile_cols = image.tile_cols;
      for (const std::uint8_t* crop : crops_[index]) prepared.crops_pinned.push_back(crop);
      prompt.image = std::move(prepared);
      prompt.inputs.push_back({.id = 3});  // BOS
      for (int i = 0; i < schedule_.model.image_tokens; ++i) {
        prompt.inputs.push_back({.kind = InputKind::kImage, .id = i});
      }
      prompt.prefix_len = schedule_.model.image_tokens + 1;
    }
    for (int i = 0; i < request.num_text_tokens; ++i) {
      prompt.inputs.push_back({.id = random.between(3, schedule_.model.vocab - 1)});
    }
    prompt.row.max_generated = request.max_generated;
    prompt.row.seed = fake_seed(request.seed, request.stop_after);
    prompt.row.num_stop_ids = 1;
    prompt.row.stop_ids[0] = kFakeStopId;
    if (request.kind == RowKind::kAutomaton) {
      prompt.row.automaton = request.seed % 2 == 0 ? 0 : 3;
      prompt.row.flags |= kRowDecodesRegions;
    } else if (request.kind == RowKind::kHostMask) {
      prompt.row.flags |= kRowHostMask;
      prompt.host_constraint =
          std::make_unique<FakeConstraint>(schedule_.model.vocab, constraint_seed(request));
    }
    return prompt;
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
    auto id = loop_->submit(make_prompt(request), live.sink);
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

  void play(const std::function<void(Loop&)>& after_tick) {
    constexpr int kMaxTicks = 20'000;
    for (int tick = 0; tick < kMaxTicks; ++tick) {
      const std::int64_t next_event_ns = deliver_events();
      const Loop::Tick result = loop_->tick();
      check_tick();
      if (!verdict_.violation.empty()) return;
      if (after_tick) after_tick(*loop_);
      if (result == Loop::Tick::kWorked) continue;
      if (next_event_ns < 0) return;
      device_.host_busy(std::max<std::int64_t>(1, next_event_ns - device_.now_ns()));
    }
    violation("the loop does not come to an end");
  }

  void check_tick() {
    if (const Status status = loop_->state().check(); !status.ok()) violation(status.message());
    if (loop_->state().num_in_flight() > schedule_.loop.depth) violation("more steps than slots");
    if (device_.num_races() > 0) violation("I4: " + device_.first_race());
    if (model_->num_faults() > 0) violation("the fake model read or wrote at a wrong place");
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
                      schedule_.model.limits.max_rows;
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

    FakeConstraint fresh(schedule_.model.vocab, constraint_seed(request));
    const FakeAnswer expected = fake_answer(schedule_.model, make_prompt(request),
                                            request.kind == RowKind::kHostMask ? &fresh : nullptr);
    const std::size_t num_tokens = sink.tokens.size();
    if (num_tokens > expected.tokens.size()) return blame("I8: more tokens than the oracle's");
    for (std::size_t t = 0; t < num_tokens; ++t) {
      const CommittedToken& got = sink.tokens[t];
      const CommittedToken& want = expected.tokens[t];
      if (got.token != want.token || got.x != want.x || got.y != want.y) {
        return blame(fmt::format("I8: token {} is {}, the oracle says {}", t, got.token.value,
                                 want.token.value));
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
  SimDevice device_;
  std::unique_ptr<FakeModel> model_;
  PinnedBuffer crops_pinned_;
  std::vector<std::vector<const std::uint8_t*>> crops_;  // by image
  std::unique_ptr<Loop> loop_;
  std::vector<Live> live_;
  std::int64_t start_ns_ = 0;
  SimVerdict verdict_;
};

}  // namespace

SimVerdict run_schedule(const Schedule& schedule, const std::function<void(Loop&)>& after_tick) {
  return Run(schedule).go(after_tick);
}

}  // namespace gapless
