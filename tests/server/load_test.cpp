// The server under many clients at once: everybody gets the words that a lone client gets, whoever
// else comes and goes, and memory comes back.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "load/load_client.h"
#include "tests/server/server_fixture.h"
#include "tests/server/step_service.h"

namespace gapless {
namespace {

// Sanitizers keep what was freed.
#ifdef GAPLESS_SANITIZED
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif

// Both ends of every connection are in this process.
void raise_descriptor_limit() {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

double resident_mb() {
  std::ifstream file("/proc/self/statm");
  double total = 0;
  double resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

// By everybody who holds memory, of all threads.
std::size_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class LoadTest : public ServerTest {
 protected:
  void start_load(LoadApi api, int max_tokens) {
    raise_descriptor_limit();
    start();
    state->set_service(&steps);
    url = *parse_server_url(fmt::format("http://127.0.0.1:{}", server->port()));
    LoadWorkload workload;
    workload.api = api;
    workload.text = "What is it?";
    workload.max_tokens = max_tokens;
    for (int i = 0; i < 13; ++i) workload.pictures.push_back(fmt::format("picture {}", i));
    requests = *make_load_requests(url, workload);
    options.duration_s = 0;
    options.request_timeout_s = 60;
    const auto alone = ask_alone(url, requests);
    ASSERT_TRUE(alone.ok()) << alone.status().to_string();
    options.expected_answers = *alone;
    ASSERT_NE((*alone)[0], (*alone)[1]);
  }

  void TearDown() override {
    server->stop();
    state->set_service(nullptr);
    ServerTest::TearDown();
  }

  LoadRun run_to_end() {
    StatusOr<LoadRun> run = run_load(url, requests, options);
    EXPECT_TRUE(run.ok());
    EXPECT_EQ(run->num_errors(), 0) << run->first_error;
    // What their clients left is cancelled, and every connection that they closed is forgotten.
    for (int i = 0; i < 1000 && (steps.num_running() > 0 || num_connections() > 0); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(steps.num_running(), 0);
    EXPECT_EQ(num_connections(), 0);
    return std::move(run).value();
  }

  int num_connections() const { return state->metrics().num_connections.load(); }

  StepService steps;
  ServerUrl url;
  LoadRequests requests;
  LoadOptions options;
};

void expect_five_hundred(const LoadRun& run) {
  EXPECT_EQ(run.count(LoadOutcome::kAnswered), 500);
  EXPECT_EQ(run.max_in_flight, 500);
}

TEST_F(LoadTest, FiveHundredStreamsAtOnceAndMemoryComesBack) {
  start_load(LoadApi::kMoondream, 40);
  options.concurrency = 500;
  options.max_requests = 500;
  // Memory goes up and down over a few rounds, so the most of four is compared with the most of the next four.
  double first_mb = 0;
  std::size_t first_bytes = 0, last_bytes = 0;
  for (int round = 0; round < 8; ++round) {
    steps.hold_until(500);
    expect_five_hundred(run_to_end());
    EXPECT_EQ(steps.most_at_once(), 500);
    if (round == 0) first_mb = resident_mb();
    std::size_t& most = round < 4 ? first_bytes : last_bytes;
    most = std::max(most, allocated_bytes());
  }
  if (kOwnAllocator) return;
  // 2000 more streams: 150 bytes lost by each would be seen. The allocator keeps and splits memory
  // as it likes, so what is resident is bounded loosely.
  EXPECT_LT(last_bytes, first_bytes + 300'000);
  EXPECT_LT(resident_mb(), first_mb + 32);
}

TEST_F(LoadTest, FiveHundredChats) {
  start_load(LoadApi::kOpenai, 20);
  options.concurrency = 500;
  options.max_requests = 500;
  steps.hold_until(500);
  expect_five_hundred(run_to_end());
}

TEST_F(LoadTest, ClientsThatDieTakeNobodysWords) {
  start_load(LoadApi::kMoondream, 60);
  options.concurrency = 200;
  options.max_requests = 2000;
  options.abandon_share = 0.4;
  const LoadRun run = run_to_end();
  EXPECT_GT(run.count(LoadOutcome::kAbandoned), 500);
  EXPECT_EQ(run.count(LoadOutcome::kAnswered) + run.count(LoadOutcome::kAbandoned), 2000);
  EXPECT_GT(steps.num_cancelled(), 100);
}

TEST_F(LoadTest, TheWarmUpGoesOnIntoTheWindow) {
  start_load(LoadApi::kMoondream, 4);
  options.concurrency = 3;
  options.warm_up_s = 0.1;
  options.max_requests = 20;
  int num_begun = 0;
  options.window_begins = [&] { ++num_begun; };
  const LoadRun run = run_to_end();
  EXPECT_EQ(num_begun, 1);
  EXPECT_EQ(run.window_begin_ns, 100'000'000);
  EXPECT_EQ(run.window_begin_ns + run.window_ns, run.elapsed_ns);
  EXPECT_EQ(run.count(LoadOutcome::kAnswered), run.num_sent);
  std::size_t num_of_window = 0;
  for (const LoadAnswer& answer : run.answers) {
    num_of_window += answer.intended_ns >= run.window_begin_ns ? 1 : 0;
  }
  EXPECT_EQ(num_of_window, 20);
  EXPECT_GE(run.answers.size(), num_of_window + 3) << "each client's first one at least";
  EXPECT_LE(run.inter_token_ns.size(), num_of_window * 3) << "between an answer's four tokens";
}

// More arrive than are answered: times count from when they should have been sent.
TEST_F(LoadTest, AnOpenLoopDoesNotWaitForAnswers) {
  start_load(LoadApi::kMoondream, 40);
  options.rate = 2000;
  options.max_requests = 300;
  steps.hold_until(300);  // nobody is answered before everybody has come
  const LoadRun run = run_to_end();
  EXPECT_EQ(run.count(LoadOutcome::kAnswered), 300);
  EXPECT_EQ(run.max_in_flight, 300);
  for (const LoadAnswer& answer : run.answers) {
    EXPECT_LT(answer.intended_ns, answer.first_text_ns);
    EXPECT_LE(answer.first_text_ns, answer.end_ns);
    EXPECT_EQ(answer.num_tokens, 40);
  }
}

TEST_F(LoadTest, ARefusalAWrongAnswerAndADeadServerAreCountedAsWhatTheyAre) {
  start_load(LoadApi::kMoondream, 4);
  options.concurrency = 4;
  options.max_requests = 26;
  options.expected_answers[3] = "something else";
  EXPECT_EQ(run_load(url, requests, options)->count(LoadOutcome::kWrongAnswer), 2);
  options.expected_answers.clear();
  state->set_service(nullptr);
  EXPECT_EQ(run_load(url, requests, options)->count(LoadOutcome::kRefused), 26);
  server->stop();
  const LoadRun run = *run_load(url, requests, options);
  EXPECT_EQ(run.count(LoadOutcome::kConnection), 26);
  EXPECT_NE(run.first_error, "");
}

}  // namespace
}  // namespace gapless
