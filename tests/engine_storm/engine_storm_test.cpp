// class Engine and EngineService with the shipped model under threads that submit, threads that
// cancel and threads that watch, at depth 1 and 2: every accepted request ends exactly once, its
// answer is the one that it gets alone, and nothing is left behind. Made for the sanitizers.
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/limits.h"
#include "engine_service/engine_service.h"
#include "tests/engine_storm/storm.h"

namespace gapless {
namespace {

struct StormCase {
  int depth = 1;
  int num_devices = 1;
};

void PrintTo(const StormCase& storm, std::ostream* out) {
  *out << "depth " << storm.depth << " on " << storm.num_devices << " devices";
}

class EngineStorm : public ::testing::TestWithParam<StormCase> {
 protected:
  static EngineOptions options() {
    EngineOptions options;
    options.loop.depth = GetParam().depth;
    options.num_preprocess_threads = 2;
    options.num_emit_threads = 2;
    options.max_active_requests = 12;
    options.num_staged_crops = kMaxTilesPerImage + 1;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Depth, EngineStorm,
                         ::testing::Values(StormCase{1, 1}, StormCase{2, 1}, StormCase{2, 2}));

// What happens to a request besides being answered.
enum class Fate { kAnswered, kCancelledAtOnce, kCancelledByAnother, kCancelledFromItsSink };

struct Submitted {
  std::size_t kind = 0;  // of storm_requests(), or one past them: a long one
  Fate fate = Fate::kAnswered;
  std::shared_ptr<Outcome> outcome;
};

// One of the threads that submit. Its requests, in order.
class Client {
 public:
  Client(EngineService& service, const std::vector<SkillRequest>& requests,
         BoundedQueue<RequestId>& to_cancel, unsigned seed)
      : service_(service), requests_(requests), to_cancel_(to_cancel), random_(seed) {}

  void run(int num_requests) {
    for (int i = 0; i < num_requests; ++i) submit_one();
  }
  const std::vector<Submitted>& submitted() const { return submitted_; }
  int num_refused() const { return num_refused_; }

 private:
  void submit_one() {
    Submitted one;
    one.kind = random_() % (requests_.size() + 1);
    const bool is_long = one.kind == requests_.size();
    one.fate = static_cast<Fate>(is_long ? 1 + random_() % 3 : random_() % 4);
    one.outcome = std::make_shared<Outcome>();
    // As a handler does it that learns its request's id only after the first event may have come.
    struct Ticket {
      std::atomic<std::int64_t> id{-1};
      std::atomic<bool> wants_cancel{false};
    };
    const auto ticket = std::make_shared<Ticket>();
    auto sink = std::make_shared<StormSink>(one.outcome);
    if (one.fate == Fate::kCancelledFromItsSink) {
      sink->on_first_text = [this, ticket] {
        ticket->wants_cancel.store(true);
        if (ticket->id.load() >= 0) service_.cancel(RequestId(ticket->id.load()));
      };
    }
    const SkillRequest request = is_long ? long_request() : requests_[one.kind];
    StatusOr<RequestId> id = service_.submit(request, sink);
    for (; !id.ok(); id = service_.submit(request, sink)) {
      ASSERT_EQ(id.status().code(), StatusCode::kResourceExhausted) << id.status().to_string();
      ++num_refused_;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    sink.reset();  // the engine's alone
    ticket->id.store(id->value);
    if (one.fate == Fate::kCancelledAtOnce || ticket->wants_cancel.load()) service_.cancel(*id);
    if (one.fate == Fate::kCancelledByAnother) {
      EXPECT_TRUE(to_cancel_.push(*id));
    }
    submitted_.push_back(std::move(one));
  }

  EngineService& service_;
  const std::vector<SkillRequest>& requests_;
  BoundedQueue<RequestId>& to_cancel_;
  std::mt19937 random_;
  std::vector<Submitted> submitted_;
  int num_refused_ = 0;
};

void cancel_some(EngineService& service, BoundedQueue<RequestId>& to_cancel) {
  while (const auto id = to_cancel.pop()) {
    service.cancel(*id);
    service.cancel(*id);                               // again
    service.cancel(RequestId(id->value + 1'000'000));  // of nobody
  }
}

// What /metrics, /debug/timeline, /debug/trace and /debug/depth do.
void watch(EngineService& service, const std::atomic<bool>& is_over) {
  int depth = 1;
  while (!is_over.load()) {
    const ServiceMetrics metrics = service.metrics();
    EXPECT_GE(metrics.num_waiting, 0);
    EXPECT_LE(metrics.kv_usage, 1.0);
    const auto timeline = service.timeline(64);
    ASSERT_TRUE(timeline.ok());
    EXPECT_TRUE(service.timeline(4, timeline->devices.back()).ok());
    EXPECT_TRUE(service.trace(16).ok());
    depth = depth % timeline->max_depth + 1;
    EXPECT_TRUE(service.set_depth(depth).ok());
    const auto ids = service.tokenize("What do you see?");
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(service.detokenize(*ids).value(), "What do you see?");
    std::this_thread::yield();
  }
}

TEST_P(EngineStorm, EveryRequestEndsOnceWithTheAnswerThatItGetsAlone) {
  constexpr int kNumClients = 3;
  constexpr int kRequestsPerClient = 30;
  auto engines = start_storm_group(GetParam().num_devices, options());
  ASSERT_TRUE(engines.ok()) << engines.status().to_string();
  const std::vector<SkillRequest> requests = storm_requests();
  std::vector<StatusOr<SkillResult>> alone;
  for (const SkillRequest& request : requests) alone.push_back((*engines)->engine(0).run(request));
  EngineService service(std::move(engines).value(), "storm");

  BoundedQueue<RequestId> to_cancel(kNumClients * kRequestsPerClient);
  std::atomic<bool> is_over{false};
  std::thread canceller([&] { cancel_some(service, to_cancel); });
  std::thread watcher([&] { watch(service, is_over); });
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kNumClients; ++i) {
    clients.push_back(std::make_unique<Client>(service, requests, to_cancel, i));
    threads.emplace_back([&client = *clients.back()] { client.run(kRequestsPerClient); });
  }
  for (std::thread& thread : threads) thread.join();
  to_cancel.close();
  canceller.join();

  int num_answered = 0;
  int num_cancelled = 0;
  int num_refused = 0;
  for (const auto& client : clients) {
    num_refused += client->num_refused();
    for (const Submitted& one : client->submitted()) {
      const StatusOr<SkillResult> end = one.outcome->wait();
      if (!end.ok() && end.status().code() == StatusCode::kCancelled) {
        EXPECT_NE(one.fate, Fate::kAnswered) << "nobody cancelled it";
        ++num_cancelled;
        continue;
      }
      ++num_answered;
      EXPECT_NE(one.kind, requests.size()) << "a long answer came to its end: its cancel was lost";
      if (one.kind < requests.size()) {
        EXPECT_TRUE(same_answer(alone[one.kind], end)) << one.kind;
      }
    }
  }
  is_over.store(true);
  watcher.join();
  RecordProperty("ends", std::to_string(num_answered) + " answered, " +
                             std::to_string(num_cancelled) + " cancelled, " +
                             std::to_string(num_refused) + " refused");
  EXPECT_GT(num_answered, 10);
  EXPECT_GT(num_cancelled, 10);

  // A request leaves its seat just after its last event.
  const auto deadline = std::chrono::steady_clock::now() + kDeadlockGuard;
  while (service.metrics().num_running + service.metrics().num_waiting > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "a request was left behind";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(service.metrics().num_forbidden_calls, 0);  // I7
  for (const auto& client : clients) {
    for (const Submitted& one : client->submitted()) {
      EXPECT_EQ(one.outcome->complaints(), std::vector<std::string>());
    }
  }
}

// Cancelling races the end: of the two exactly one is told.
TEST_P(EngineStorm, ACancelThatMeetsTheEnd) {
  auto engines = start_storm_group(GetParam().num_devices, options());
  ASSERT_TRUE(engines.ok()) << engines.status().to_string();
  EngineService service(std::move(engines).value(), "storm");
  SkillRequest request = long_request();
  for (int round = 0; round < 20; ++round) {
    request.settings.max_tokens = 1 + round % 3;
    const auto outcome = std::make_shared<Outcome>();
    const auto id = service.submit(request, std::make_shared<StormSink>(outcome));
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    std::vector<std::thread> cancellers;
    for (int i = 0; i < 2; ++i) {
      cancellers.emplace_back([&, i] {
        for (int spin = 0; spin < 40 * round * (i + 1) && !outcome->has_ended(); ++spin) {
          std::this_thread::yield();
        }
        service.cancel(*id);
      });
    }
    const auto end = outcome->wait();
    for (std::thread& thread : cancellers) thread.join();
    if (!end.ok()) {
      EXPECT_EQ(end.status().code(), StatusCode::kCancelled);
    }
    EXPECT_EQ(outcome->complaints(), std::vector<std::string>());
  }
}

// The engine goes while requests are in every stage: waiting to be prepared, waiting for crop
// buffers, running, being told. Each hears its end before the engine is gone; whoever then submits
// again, as a client that retries, is refused.
TEST_P(EngineStorm, ShutdownWithWorkQueued) {
  enum class When { kAtOnce, kAfterAFirstText, kAfterAnEnd };
  for (const When when : {When::kAtOnce, When::kAfterAFirstText, When::kAfterAnEnd}) {
    SCOPED_TRACE(static_cast<int>(when));
    auto started = start_storm_engine(options());
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    std::unique_ptr<Engine> engine = std::move(started).value();
    std::atomic<int> num_refused_retries{0};
    const auto first_text = std::make_shared<Outcome>();
    std::atomic<bool> has_text{false};
    std::vector<std::shared_ptr<Outcome>> outcomes;
    for (int i = 0; i < options().max_active_requests; ++i) {
      SkillRequest request = long_request();
      if (i % 4 == 1) request.images = {plain_picture(20 * i)};
      if (i == 0) request.settings.max_tokens = 2;  // the one whose end is waited for
      outcomes.push_back(std::make_shared<Outcome>());
      auto sink = std::make_shared<StormSink>(outcomes.back());
      sink->on_first_text = [&] {
        if (!has_text.exchange(true)) first_text->end(SkillResult());
      };
      sink->on_end = [&, raw = engine.get(), outcome = outcomes.back()] {
        if (outcome->wait().ok()) return;
        const auto again =
            raw->submit(long_request(), std::make_shared<StormSink>(std::make_shared<Outcome>()));
        EXPECT_FALSE(again.ok());
        if (again.status().code() == StatusCode::kUnavailable) ++num_refused_retries;
      };
      const auto id = engine->submit(request, std::move(sink));
      ASSERT_TRUE(id.ok()) << id.status().to_string();
    }
    if (when == When::kAfterAFirstText) (void)first_text->wait();
    if (when == When::kAfterAnEnd) (void)outcomes.front()->wait();
    engine.reset();

    int num_cancelled = 0;
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome->has_ended());
      EXPECT_EQ(outcome->complaints(), std::vector<std::string>());
      const auto end = outcome->wait();
      if (end.ok()) continue;
      EXPECT_EQ(end.status().code(), StatusCode::kCancelled) << end.status().to_string();
      ++num_cancelled;
    }
    EXPECT_GT(num_cancelled, 0) << "the answers were too short";
    EXPECT_EQ(num_refused_retries.load(), num_cancelled);
  }
}

}  // namespace
}  // namespace gapless
