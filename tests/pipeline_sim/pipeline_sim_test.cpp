// Thousands of random schedules through the real loop in virtual time.
//   GAPLESS_SIM_SEED=17 ...   replays one seed
//   GAPLESS_SIM_SCHEDULES=N   runs N schedules instead
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/pipeline_sim/run_schedule.h"

namespace gapless {
namespace {

#ifdef GAPLESS_SANITIZED
constexpr int kNumSchedules = 1'000;
#else
constexpr int kNumSchedules = 10'000;
#endif

int number_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

TEST(PipelineSimTest, RandomSchedulesHoldI1ToI8) {
  const int only_seed = number_from_environment("GAPLESS_SIM_SEED", -1);
  const int first = only_seed >= 0 ? only_seed : 1;
  const int count =
      only_seed >= 0 ? 1 : number_from_environment("GAPLESS_SIM_SCHEDULES", kNumSchedules);
  SimStats sum;
  int num_lost = 0;
  int num_beside_zombies = 0;
  for (int seed = first; seed < first + count; ++seed) {
    const Schedule schedule = make_schedule(static_cast<std::uint64_t>(seed));
    const SimVerdict verdict = run_schedule(schedule);
    ASSERT_EQ(verdict.violation, "") << "replay with GAPLESS_SIM_SEED=" << seed;
    sum.num_stopped += verdict.stats.num_stopped;
    sum.num_length += verdict.stats.num_length;
    sum.num_cancelled += verdict.stats.num_cancelled;
    sum.num_failed += verdict.stats.num_failed;
    sum.num_refused += verdict.stats.num_refused;
    sum.num_steps += verdict.stats.num_steps;
    sum.num_zombie_rows += verdict.stats.num_zombie_rows;
    num_lost += verdict.stats.device_lost ? 1 : 0;
    num_beside_zombies += verdict.stats.seated_beside_zombies ? 1 : 0;
  }
  std::printf(
      "%d schedules, %lld steps: %d stopped, %d at their length, %d cancelled, %d failed, "
      "%d refused, %lld zombie rows, %d devices lost, %d with more rows taken than seats\n",
      count, static_cast<long long>(sum.num_steps), sum.num_stopped, sum.num_length,
      sum.num_cancelled, sum.num_failed, sum.num_refused,
      static_cast<long long>(sum.num_zombie_rows), num_lost, num_beside_zombies);
  if (only_seed >= 0 || count < 500) return;
  // The schedules reach what they are meant to reach.
  EXPECT_GT(sum.num_stopped, count / 10);
  EXPECT_GT(sum.num_length, count / 10);
  EXPECT_GT(sum.num_cancelled, count / 10);
  EXPECT_GT(sum.num_failed, count / 100);
  EXPECT_GT(sum.num_refused, 0);
  EXPECT_GT(sum.num_zombie_rows, count / 10);
  EXPECT_GT(num_lost, 0);
  EXPECT_GT(num_beside_zombies, count / 100) << "seats are given while zombies hold rows";
}

// More seats than a word has bits, up to as many as there may be. Fewer schedules would not reach that.
TEST(PipelineSimTest, HundredsOfSeatsHoldI1ToI8) {
  int most_running = 0, num_cancelled = 0, num_stopped = 0;
  std::int64_t num_zombie_rows = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const SimVerdict verdict = run_schedule(make_crowded_schedule(seed));
    ASSERT_EQ(verdict.violation, "") << "seed " << seed;
    most_running = std::max(most_running, verdict.stats.most_running);
    num_cancelled += verdict.stats.num_cancelled;
    num_stopped += verdict.stats.num_stopped;
    num_zombie_rows += verdict.stats.num_zombie_rows;
  }
  EXPECT_GT(most_running, 200);
  EXPECT_GT(num_cancelled, 0);
  EXPECT_GT(num_stopped, 0);
  EXPECT_GT(num_zombie_rows, 0);
}

// The depth is switched between any two ticks, and no token, row or page is lost.
TEST(PipelineSimTest, TheActiveDepthMaySwitchAtAnyTickI8) {
  std::int64_t num_fewer = 0;
  for (std::uint64_t seed = 1; seed <= kNumSchedules / 10; ++seed) {
    const Schedule schedule = make_schedule(seed);
    SimRandom random(seed);
    int allowed = schedule.loop.depth;
    int before = 0;  // steps in flight
    const auto switch_depth = [&](Loop& loop) {
      const int in_flight = loop.state().num_in_flight();
      // A launch adds one at most, and none beyond what was allowed.
      EXPECT_LE(in_flight, std::max(before, allowed));
      before = in_flight;
      if (in_flight == 0 && allowed < loop.depth()) ++num_fewer;
      if (random.chance(0.3)) loop.set_active_depth(allowed = random.between(1, loop.depth()));
    };
    const SimVerdict verdict = run_schedule(schedule, {.after_tick = switch_depth});
    ASSERT_EQ(verdict.violation, "") << "seed " << seed;
  }
  EXPECT_GT(num_fewer, 0);
}

// A step hangs anywhere, among whatever else goes wrong: everybody still gets one end.
TEST(PipelineSimTest, AStepThatHangsAnywhereEndsEveryRequestOnce) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  int num_lost = 0;
  for (std::uint64_t seed = 1; seed <= kNumSchedules / 10; ++seed) {
    Schedule schedule = make_schedule(seed);
    SimRandom random(seed);
    schedule.loop.step_timeout_ns = kSecond;
    schedule.device.faults.hanging_ops = {random.between(1, 2000)};
    int num_told = 0;
    schedule.loop.on_device_lost = [&](const Status& status) {
      ++num_told;
      EXPECT_FALSE(status.ok());
    };
    const SimVerdict verdict = run_schedule(schedule);
    ASSERT_EQ(verdict.violation, "") << "seed " << seed;
    EXPECT_LE(num_told, 1);
    num_lost += num_told;
  }
  EXPECT_GT(num_lost, kNumSchedules / 100);
}

// Every place where an answer can end, for every depth and kind of row.
TEST(PipelineSimTest, StopsAtEveryStepI6) {
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    for (int stop_after = 0; stop_after <= 8; ++stop_after) {
      for (const RowKind kind :
           {RowKind::kPlain, RowKind::kAutomaton, RowKind::kHostMask, RowKind::kGrammar}) {
        Schedule schedule = make_schedule(1);
        schedule.loop.depth = depth;
        schedule.device.faults = {};
        schedule.model.limits.max_seats = 3;
        schedule.model.limits.num_pages = 40;
        schedule.requests.clear();
        for (int i = 0; i < 3; ++i) {
          SimRequest request;
          request.kind = kind;
          if (i == 0) request.images = {0};
          request.max_generated = 8;
          request.stop_after = std::max(0, stop_after - i);
          request.seed = static_cast<std::uint32_t>(stop_after * 10 + i);
          schedule.requests.push_back(request);
        }
        const SimVerdict verdict = run_schedule(schedule);
        ASSERT_EQ(verdict.violation, "") << "depth " << depth << ", stop after " << stop_after;
      }
    }
  }
}

}  // namespace
}  // namespace gapless
