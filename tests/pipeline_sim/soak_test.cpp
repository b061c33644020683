// Half an hour of traffic in virtual time: the real loop on the simulated device, arrivals at half
// of what it can do and at twice that by turns, cancellations at every stage. Once in a
// virtual minute the traffic pauses; then everything must have come back: rows, pages, image
// places, slots, the prompts themselves. Every token is compared with the oracle's.
//   GAPLESS_SOAK_MINUTES=N ...   so many virtual minutes instead
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/pipeline_sim/request_maker.h"

namespace gapless {
namespace {

#ifdef GAPLESS_SANITIZED
constexpr int kMinutes = 3;
#else
constexpr int kMinutes = 30;
#endif
constexpr std::int64_t kMinuteNs = 60'000'000'000;
constexpr std::int64_t kTrafficNs = 50'000'000'000;  // of each minute

struct SoakCounts {
  std::int64_t submitted = 0;
  std::int64_t refused = 0;
  std::int64_t stopped = 0;
  std::int64_t at_length = 0;
  std::int64_t cancelled = 0;
  std::int64_t tokens = 0;
  std::int64_t pauses = 0;
};

// A small engine with a GPU's times: about 45 answers a second.
Schedule soak_engine(int depth) {
  Schedule schedule = make_schedule(1);
  schedule.seed = 1;
  schedule.requests.clear();
  schedule.device.faults = {};
  schedule.device.times = SimTimes();
  schedule.loop = {
      .depth = depth, .max_waiting = 64, .max_cached_prefixes = 3, .ledger_capacity = 16};
  StepLimits& limits = schedule.model.limits;
  limits.max_seats = 6;
  limits.max_prefill_sequences = 3;
  limits.num_pages = 30;
  limits.num_image_slots = 2;
  schedule.model.automata = sim_automata();
  schedule.model.token_classes = sim_token_classes(schedule.model.vocab);
  schedule.model.forward_ns = [](const StepShape& shape) {
    return shape.kind == StepKind::kDecode ? std::int64_t{5'000'000} : std::int64_t{12'000'000};
  };
  schedule.model.sampling_ns = [](const StepShape&) { return std::int64_t{200'000}; };
  schedule.images = {{1, 1}, {2, 2}, {1, 3}, {2, 1}, {1, 2}};  // more than the cache holds
  return schedule;
}

class Soak {
 public:
  explicit Soak(int depth) : schedule_(soak_engine(depth)), device_(schedule_.device) {
    model_ = FakeModel::create(device_, schedule_.model).value();
    maker_ = RequestMaker::create(device_, schedule_).value();
    loop_ = Loop::create(device_, *model_, device_.host_clock(), schedule_.loop).value();
  }

  void run(int minutes) {
    for (int minute = 0; minute < minutes && !::testing::Test::HasFailure(); ++minute) {
      run_traffic(minute % 2 == 0 ? 20.0 : 90.0);
      check_pause(minute);
    }
  }

  const SoakCounts& counts() const { return counts_; }
  LedgerTotals ledger() const { return loop_->ledger().totals(); }

 private:
  struct Sink : TokenSink {
    Sink(Soak& soak, SimRequest what) : soak_(soak), request(what) { ++soak_.num_sinks_; }
    ~Sink() override { --soak_.num_sinks_; }
    void on_token(const CommittedToken& token) override {
      tokens.push_back(token);
      if (static_cast<int>(tokens.size()) - 1 == request.cancel_at_token) cancel();
    }
    void on_finished(FinishReason why, const Status&, const SequenceTimes&) override {
      ++num_finished;
      reason = why;
    }
    void cancel() {
      cancelled = true;
      soak_.loop_->cancel(id);
    }
    Soak& soak_;
    const SimRequest request;
    SequenceId id;
    std::vector<CommittedToken> tokens;
    int num_finished = 0;
    FinishReason reason = FinishReason::kError;
    bool cancelled = false;
  };

  double uniform() { return static_cast<double>(random_.next() >> 11) * 0x1.0p-53; }

  SimRequest next_request() {
    SimRequest request;
    request.kind = static_cast<RowKind>(random_.between(0, 3));
    request.num_text_tokens = random_.between(1, 12);
    const int num_images = static_cast<int>(schedule_.images.size());
    while (request.images.size() < 2 && random_.chance(request.images.empty() ? 0.7 : 0.2)) {
      request.images.push_back(random_.between(0, num_images - 1));
    }
    request.max_generated = random_.between(1, 16);
    if (random_.chance(0.7)) request.stop_after = random_.between(0, request.max_generated);
    request.seed = static_cast<std::uint32_t>(random_.next());
    if (random_.chance(0.1)) request.cancel_at_token = random_.between(0, 8);
    if (random_.chance(0.1)) {
      // While it waits, is prefilled or decodes.
      request.cancel_ns = device_.now_ns() + std::int64_t{random_.between(0, 300)} * 1'000'000;
    }
    return request;
  }

  void run_traffic(double rate_per_s) {
    const std::int64_t end_ns = device_.now_ns() + kTrafficNs;
    std::int64_t arrival_ns = device_.now_ns();
    while (!::testing::Test::HasFailure()) {
      while (arrival_ns <= device_.now_ns() && arrival_ns < end_ns) {
        submit();
        arrival_ns += static_cast<std::int64_t>(-std::log(1 - uniform()) / rate_per_s * 1e9);
      }
      const bool worked = loop_->tick() == Loop::Tick::kWorked;
      ASSERT_EQ(loop_->state().check().message(), "");
      settle();
      if (worked) continue;
      if (arrival_ns >= end_ns) break;
      device_.host_busy(std::max<std::int64_t>(1, arrival_ns - device_.now_ns()));
    }
  }

  void submit() {
    const SimRequest request = next_request();
    auto sink = std::make_shared<Sink>(*this, request);
    const auto id = loop_->submit(maker_->prompt(request), sink);
    ++counts_.submitted;
    if (!id.ok()) {
      ++counts_.refused;
      ASSERT_EQ(id.status().code(), StatusCode::kResourceExhausted);
      return;
    }
    sink->id = *id;
    live_.push_back(std::move(sink));
  }

  // Cancels what is due, and judges and forgets what has ended.
  void settle() {
    std::erase_if(live_, [this](const std::shared_ptr<Sink>& sink) {
      const std::int64_t cancel_ns = sink->request.cancel_ns;
      if (sink->num_finished == 0 && !sink->cancelled && cancel_ns >= 0 &&
          cancel_ns <= device_.now_ns()) {
        sink->cancel();
      }
      if (sink->num_finished == 0) return false;
      judge(*sink);
      return true;
    });
  }

  void judge(const Sink& sink) {
    EXPECT_EQ(sink.num_finished, 1);
    counts_.tokens += static_cast<std::int64_t>(sink.tokens.size());
    const FakeAnswer expected = maker_->expected(sink.request);
    ASSERT_LE(sink.tokens.size(), expected.tokens.size());
    for (std::size_t i = 0; i < sink.tokens.size(); ++i) {
      ASSERT_EQ(sink.tokens[i].token, expected.tokens[i].token) << "token " << i;
    }
    if (sink.reason == FinishReason::kCancelled) {
      EXPECT_TRUE(sink.cancelled);
      ++counts_.cancelled;
      return;
    }
    EXPECT_EQ(sink.reason, expected.reason);
    EXPECT_EQ(sink.tokens.size(), expected.tokens.size());
    ++(sink.reason == FinishReason::kStop ? counts_.stopped : counts_.at_length);
  }

  void check_pause(int minute) {
    SCOPED_TRACE(minute);
    ++counts_.pauses;
    const Loop::Counts counts = loop_->counts();
    EXPECT_EQ(counts.waiting, 0);
    EXPECT_EQ(counts.steps_in_flight, 0);
    EXPECT_TRUE(loop_->state().is_empty());
    EXPECT_EQ(counts.seats.rows_in_use, 0);
    EXPECT_EQ(counts.seats.image_slots_in_use, 0);
    EXPECT_EQ(counts.seats.pages_in_use, loop_->num_cached_pages());
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(num_sinks_, 0) << "the loop keeps prompts that have ended";
    EXPECT_EQ(model_->num_faults(), 0);
    EXPECT_EQ(device_.num_races(), 0) << device_.first_race();
    EXPECT_EQ(loop_->forbidden_calls(), 0);
    // To the next full minute.
    device_.host_busy(kMinuteNs - device_.now_ns() % kMinuteNs);
  }

  const Schedule schedule_;
  SimDevice device_;
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<RequestMaker> maker_;
  int num_sinks_ = 0;
  std::vector<std::shared_ptr<Sink>> live_;
  std::unique_ptr<Loop> loop_;
  SimRandom random_{7};
  SoakCounts counts_;
};

TEST(SoakTest, HalfAnHourLeaksNothing) {
  const char* text = std::getenv("GAPLESS_SOAK_MINUTES");
  const int minutes = text == nullptr ? kMinutes : std::atoi(text);
  Soak soak(2);
  soak.run(minutes);
  const SoakCounts& counts = soak.counts();
  const LedgerTotals totals = soak.ledger();
  std::printf(
      "%d minutes, %lld steps: %lld requests, %lld stopped, %lld at their length, %lld cancelled, "
      "%lld refused, %lld tokens, %lld zombie rows, device busy %.1f %%\n",
      minutes, static_cast<long long>(totals.steps()), static_cast<long long>(counts.submitted),
      static_cast<long long>(counts.stopped), static_cast<long long>(counts.at_length),
      static_cast<long long>(counts.cancelled), static_cast<long long>(counts.refused),
      static_cast<long long>(counts.tokens), static_cast<long long>(totals.num_zombie_rows),
      100 * totals.busy_share());
  if (HasFailure() || minutes < 2) return;
  EXPECT_EQ(counts.pauses, minutes);
  EXPECT_EQ(counts.submitted,
            counts.refused + counts.stopped + counts.at_length + counts.cancelled);
  // The traffic reaches what it is meant to reach.
  EXPECT_GT(counts.stopped, 100 * minutes);
  EXPECT_GT(counts.at_length, 100 * minutes);
  EXPECT_GT(counts.cancelled, 50 * minutes);
  EXPECT_GT(counts.refused, 0);
  EXPECT_GT(totals.num_zombie_rows, 0);
}

}  // namespace
}  // namespace gapless
