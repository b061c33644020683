#include "sim/sim_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/sim_stream.h"

namespace gapless {
namespace {

SimConfig free_config() {
  return {.times = SimTimes::free()};
}

// A device with the three streams of the pipeline. Public members, as the tests are scripts.
struct Rig {
  explicit Rig(SimConfig config = free_config()) : device(std::move(config)) {}

  std::unique_ptr<Event> event() { return device.create_event().value(); }
  std::int64_t idle_ns() const {
    const std::vector<SimInterval>& work = device.timeline("compute");
    const std::int64_t begin_ns = work.front().begin_ns;
    const std::int64_t end_ns = work.back().end_ns;
    return end_ns - begin_ns - busy_ns_within(work, begin_ns, end_ns);
  }

  SimDevice device;
  std::unique_ptr<Stream> h2d = device.create_stream("h2d").value();
  std::unique_ptr<Stream> compute = device.create_stream("compute").value();
  std::unique_ptr<Stream> d2h = device.create_stream("d2h").value();
};

Status kernel(Stream& stream, std::int64_t duration_ns, std::function<void()> effect = {}) {
  return SimStream::of(stream).enqueue_kernel(duration_ns, std::move(effect), "kernel");
}

// --- Time ---------------------------------------------------------------------------------------

// depth 1: launch, wait, host work; depth 2: the next launch comes before the wait.
std::int64_t run_steps(Rig& rig, int depth, int num_steps, std::int64_t forward_ns,
                       std::int64_t host_ns) {
  std::vector<std::unique_ptr<Event>> done;
  for (int slot = 0; slot < depth; ++slot) done.push_back(rig.event());
  int launched = 0;
  for (int step = 0; step < num_steps; ++step) {
    for (; launched < num_steps && launched < step + depth; ++launched) {
      EXPECT_TRUE(kernel(*rig.compute, forward_ns).ok());
      EXPECT_TRUE(rig.compute->record(*done[static_cast<std::size_t>(launched % depth)]).ok());
    }
    EXPECT_TRUE(done[static_cast<std::size_t>(step % depth)]->synchronize().ok());
    rig.device.host_busy(host_ns);
  }
  return rig.device.now_ns();
}

TEST(SimTimeTest, TheBlockingLoopPaysForwardAndHost) {
  Rig rig;
  EXPECT_EQ(run_steps(rig, 1, 10, 2450, 660), 10 * (2450 + 660));
  EXPECT_EQ(rig.idle_ns(), 9 * 660);
}

TEST(SimTimeTest, ThePipelinedLoopHidesTheHost) {
  Rig rig;
  EXPECT_EQ(run_steps(rig, 2, 10, 2450, 660), 10 * 2450 + 660);
  EXPECT_EQ(rig.idle_ns(), 0);
}

TEST(SimTimeTest, AHostSlowerThanTheForwardSetsThePeriod) {
  Rig rig;
  // The first step is waited for; then the host is the bottleneck.
  EXPECT_EQ(run_steps(rig, 2, 10, 1000, 1500), 1000 + 10 * 1500);
  EXPECT_EQ(rig.idle_ns(), 8 * 500);
}

TEST(SimTimeTest, EveryCostIsCharged) {
  SimTimes times = SimTimes::free();
  times.host_call_ns = 10;
  times.launch_latency_ns = 300;
  times.event_latency_ns = 50;
  times.wake_ns = 7;
  times.copy_latency_ns = 1000;
  times.copy_bytes_per_ns = 2;
  Rig rig({.times = times});
  const auto computed = rig.event();
  const auto copied = rig.event();
  const Buffer data = rig.device.allocate(64).value();
  const PinnedBuffer host = rig.device.allocate_pinned(64).value();
  const std::int64_t begin_ns = rig.device.now_ns();
  ASSERT_TRUE(kernel(*rig.compute, 5000).ok());      // 10 .. begins at 310, ends at 5310
  ASSERT_TRUE(rig.compute->record(*computed).ok());  // 20
  ASSERT_TRUE(rig.d2h->wait(*computed).ok());        // 30: not before 5360
  ASSERT_TRUE(rig.d2h->copy_to_host(host.data(), data.data(), 64).ok());  // ends at 6392
  ASSERT_TRUE(rig.d2h->record(*copied).ok());
  EXPECT_EQ(rig.device.now_ns() - begin_ns, 50);
  ASSERT_TRUE(copied->synchronize().ok());
  EXPECT_EQ(rig.device.timeline("compute").at(0).begin_ns - begin_ns, 310);
  EXPECT_EQ(rig.device.timeline("d2h").at(0).begin_ns - begin_ns, 5360);
  EXPECT_EQ(rig.device.timeline("d2h").at(0).end_ns - begin_ns, 6392);
  EXPECT_EQ(rig.device.now_ns() - begin_ns, 6399);
}

TEST(SimTimeTest, TheHostClockIsTheVirtualOne) {
  Rig rig;
  HostClock& clock = rig.device.host_clock();
  clock.spend_ns(123);
  rig.device.host_busy(7);
  EXPECT_EQ(clock.now_ns(), 130);
}

TEST(SimTimeTest, PollingComesToAnEndAndFindsTheTime) {
  Rig rig;
  const auto done = rig.event();
  ASSERT_TRUE(kernel(*rig.compute, 1000).ok());
  ASSERT_TRUE(rig.compute->record(*done).ok());
  while (!done->is_complete().value()) {
  }
  EXPECT_EQ(rig.device.now_ns(), 1000);
}

TEST(SimTimeTest, BusyTimeCountsOverlapsOnceAndKeepsToTheWindow) {
  const std::vector<SimInterval> timeline = {{0, 10, "a"}, {5, 15, "b"}, {20, 30, "c"}};
  EXPECT_EQ(busy_ns_within(timeline, 0, 30), 25);
  EXPECT_EQ(busy_ns_within(timeline, 8, 25), 12);
  EXPECT_EQ(busy_ns_within(timeline, 15, 20), 0);
}

TEST(SimTimeTest, TheDevicesClockHasItsOwnZero) {
  SimConfig config = free_config();
  config.clock_offset_ns = -1'000'000;
  Rig rig(config);
  std::uint64_t stamp = 0;
  ASSERT_TRUE(kernel(*rig.compute, 400).ok());
  ASSERT_TRUE(kernel(*rig.compute, 0, [&] { stamp = rig.device.device_clock_ns(); }).ok());
  rig.device.host_busy(5000);
  EXPECT_EQ(stamp, 1'000'400u);
  EXPECT_EQ(static_cast<std::int64_t>(stamp) + rig.device.clock_offset_ns().value(), 400);
}

// --- Order and events ---------------------------------------------------------------------------

TEST(SimOrderTest, EffectsHappenInOrderOfTimeAcrossStreams) {
  Rig rig;
  std::string log;
  ASSERT_TRUE(kernel(*rig.compute, 300, [&] { log += "c"; }).ok());
  ASSERT_TRUE(kernel(*rig.h2d, 100, [&] { log += "a"; }).ok());
  ASSERT_TRUE(kernel(*rig.h2d, 100, [&] { log += "b"; }).ok());
  ASSERT_TRUE(kernel(*rig.d2h, 400, [&] { log += "d"; }).ok());
  rig.device.host_busy(199);
  EXPECT_EQ(log, "a");
  rig.device.host_busy(1);
  EXPECT_EQ(log, "ab");
  rig.device.host_busy(1000);
  EXPECT_EQ(log, "abcd");
}

TEST(SimOrderTest, AWaitHoldsAStreamBackAndEffectsOfOneTimeKeepTheirOrder) {
  Rig rig;
  const auto made = rig.event();
  std::string log;
  ASSERT_TRUE(kernel(*rig.d2h, 100, [&] { log += "producer "; }).ok());
  ASSERT_TRUE(rig.d2h->record(*made).ok());
  ASSERT_TRUE(rig.compute->wait(*made).ok());
  ASSERT_TRUE(SimStream::of(*rig.compute)
                  .enqueue_kernel({.duration_ns = 0,
                                   .on_begin = [&] { log += "begin "; },
                                   .on_end = [&] { log += "end"; }})
                  .ok());
  ASSERT_TRUE(rig.compute->synchronize().ok());
  EXPECT_EQ(log, "producer begin end");
  EXPECT_EQ(rig.device.now_ns(), 100);
}

TEST(SimOrderTest, AWaitKeepsTheRecordThatWasTheLatestWhenItWasCalled) {
  Rig rig;
  const auto point = rig.event();
  ASSERT_TRUE(kernel(*rig.h2d, 100).ok());
  ASSERT_TRUE(rig.h2d->record(*point).ok());
  ASSERT_TRUE(rig.compute->wait(*point).ok());
  ASSERT_TRUE(kernel(*rig.h2d, 900).ok());
  ASSERT_TRUE(rig.h2d->record(*point).ok());
  ASSERT_TRUE(kernel(*rig.compute, 10).ok());
  ASSERT_TRUE(rig.compute->synchronize().ok());
  EXPECT_EQ(rig.device.now_ns(), 110);
  ASSERT_TRUE(point->synchronize().ok());
  EXPECT_EQ(rig.device.now_ns(), 1000);
}

TEST(SimOrderTest, AnEventThatWasNeverRecordedPasses) {
  Rig rig;
  const auto never = rig.event();
  ASSERT_TRUE(never->synchronize().ok());
  ASSERT_TRUE(rig.compute->wait(*never).ok());
  ASSERT_TRUE(rig.compute->synchronize().ok());
  EXPECT_EQ(rig.device.now_ns(), 0);
}

TEST(SimOrderTest, AGraphIsOneCallThatReplaysItsWork) {
  SimConfig config = free_config();
  config.times.host_call_ns = 10;
  Rig rig(config);
  int value = 0;
  const auto call = [&](int v) { return kernel(*rig.compute, 100, [&value, v] { value = v; }); };
  ASSERT_TRUE(rig.compute->begin_capture().ok());
  ASSERT_TRUE(call(1).ok());
  ASSERT_TRUE(call(2).ok());
  std::unique_ptr<Graph> graph = rig.compute->end_capture().value();
  for (int replay = 0; replay < 2; ++replay) {
    value = 0;
    const std::int64_t begin_ns = rig.device.now_ns();
    ASSERT_TRUE(rig.compute->launch(*graph).ok());
    rig.device.host_busy(150);
    EXPECT_EQ(value, 1);
    rig.device.host_busy(50);
    EXPECT_EQ(value, 2);
    EXPECT_EQ(rig.device.now_ns() - begin_ns, 210);
  }
  ASSERT_TRUE(rig.compute->launch(*graph).ok());
  value = 0;
  graph.reset();
  rig.device.host_busy(200);
  EXPECT_EQ(value, 2) << "a graph may go while it runs";
}

// The flag is looked at when the work's turn comes; what is left out takes its time all the same.
TEST(SimOrderTest, AGraphLeavesOutWhatItsFlagForbids) {
  Rig rig(free_config());
  std::uint32_t flag = 0;
  std::string log;
  const auto add = [&](const char* what) {
    return kernel(*rig.compute, 100, [&log, what] { log += what; });
  };
  ASSERT_TRUE(rig.compute->begin_capture().ok());
  ASSERT_TRUE(add("a").ok());
  ASSERT_TRUE(rig.compute->begin_if(&flag).ok());
  EXPECT_EQ(rig.compute->begin_if(&flag).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.compute->end_capture().status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(add("b").ok());
  ASSERT_TRUE(rig.compute->end_if().ok());
  EXPECT_EQ(rig.compute->end_if().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(add("c").ok());
  const std::unique_ptr<Graph> graph = rig.compute->end_capture().value();
  for (const std::uint32_t holds : {0u, 1u, 0u}) {
    ASSERT_TRUE(kernel(*rig.compute, 100, [&flag, holds] { flag = holds; }).ok());
    log.clear();
    const std::int64_t begin_ns = rig.device.now_ns();
    ASSERT_TRUE(rig.compute->launch(*graph).ok());
    ASSERT_TRUE(rig.compute->synchronize().ok());
    EXPECT_EQ(log, holds != 0 ? "abc" : "ac");
    EXPECT_EQ(rig.device.now_ns() - begin_ns, 400);
  }
}

TEST(SimOrderTest, AStreamAndABufferGoWithTheWorkDone) {
  Rig rig;
  int num_done = 0;
  Buffer data = rig.device.allocate(16).value();
  ASSERT_TRUE(kernel(*rig.compute, 100, [&] { ++num_done; }).ok());
  data = Buffer();
  EXPECT_EQ(num_done, 1);
  ASSERT_TRUE(kernel(*rig.compute, 100, [&] { ++num_done; }).ok());
  rig.compute.reset();
  EXPECT_EQ(num_done, 2);
  EXPECT_EQ(rig.device.timeline("compute").size(), 2u) << "the timeline outlives the stream";
}

// --- Memory -------------------------------------------------------------------------------------

struct CopyRig : Rig {
  CopyRig() : Rig(config()) {
    std::fill_n(in.as<std::uint8_t>(), 64, std::uint8_t{1});
    std::fill_n(out.as<std::uint8_t>(), 64, std::uint8_t{0});
  }
  static SimConfig config() {
    SimConfig config = free_config();
    config.times.copy_latency_ns = 100;
    return config;
  }

  PinnedBuffer in = device.allocate_pinned(64).value();
  PinnedBuffer out = device.allocate_pinned(64).value();
  Buffer data = device.allocate(64).value();
};

TEST(SimMemoryTest, ARoundTripInOrderIsCleanAndRight) {
  CopyRig rig;
  const auto uploaded = rig.event();
  ASSERT_TRUE(rig.h2d->copy_to_device(rig.data.data(), rig.in.data(), 64).ok());
  ASSERT_TRUE(rig.h2d->record(*uploaded).ok());
  ASSERT_TRUE(rig.d2h->wait(*uploaded).ok());
  ASSERT_TRUE(rig.d2h->copy_to_host(rig.out.data(), rig.data.data(), 64).ok());
  ASSERT_TRUE(rig.d2h->synchronize().ok());
  EXPECT_EQ(rig.out.as<std::uint8_t>()[63], 1);
  EXPECT_EQ(rig.device.num_races(), 0) << rig.device.first_race();
}

// The planted bug of invariant I4: the host fills the next step's inputs into pinned memory that
// the copy of the last ones still reads.
TEST(SimMemoryTest, APinnedBufferReusedTooEarlyCorruptsTheCopyAndIsARace) {
  for (const std::int64_t wait_ns : {0, 50, 99}) {
    CopyRig rig;
    ASSERT_TRUE(rig.h2d->copy_to_device(rig.data.data(), rig.in.data(), 64).ok());
    rig.device.host_busy(wait_ns);
    rig.in.as<std::uint8_t>()[5] = 2;
    rig.device.host_busy(1000);
    EXPECT_EQ(rig.data.as<std::uint8_t>()[5], 2) << "wait of " << wait_ns;
    EXPECT_EQ(rig.device.num_races(), 1);
    EXPECT_NE(rig.device.first_race().find("stream h2d, copy_to_device"), std::string::npos)
        << rig.device.first_race();
  }
}

TEST(SimMemoryTest, APinnedBufferReusedInTimeIsClean) {
  CopyRig rig;
  ASSERT_TRUE(rig.h2d->copy_to_device(rig.data.data(), rig.in.data(), 64).ok());
  rig.device.host_busy(100);
  rig.in.as<std::uint8_t>()[5] = 2;
  rig.device.host_busy(1000);
  EXPECT_EQ(rig.data.as<std::uint8_t>()[5], 1);
  EXPECT_EQ(rig.device.num_races(), 0) << rig.device.first_race();
}

TEST(SimMemoryTest, PinnedMemoryWrittenBeforeAQueuedCopyBeginsIsARace) {
  CopyRig rig;
  ASSERT_TRUE(kernel(*rig.h2d, 500).ok());
  ASSERT_TRUE(rig.h2d->copy_to_device(rig.data.data(), rig.in.data(), 64).ok());
  rig.device.host_busy(100);
  rig.in.as<std::uint8_t>()[5] = 2;
  rig.device.host_busy(1000);
  EXPECT_EQ(rig.device.num_races(), 1);
}

TEST(SimMemoryTest, AHostThatDoesNotWaitReadsScribble) {
  CopyRig rig;
  ASSERT_TRUE(rig.d2h->copy_to_host(rig.out.data(), rig.data.data(), 64).ok());
  rig.device.host_busy(50);
  EXPECT_EQ(rig.out.as<std::uint8_t>()[0], kSimScribble);
}

TEST(SimMemoryTest, ACopyThatDoesNotWaitForItsSourceIsARace) {
  CopyRig rig;
  std::uint8_t* const data = rig.data.as<std::uint8_t>();
  ASSERT_TRUE(rig.device.create_event().ok());
  ASSERT_TRUE(kernel(*rig.compute, 50, [=] { data[0] = 9; }).ok());
  ASSERT_TRUE(rig.d2h->copy_to_host(rig.out.data(), data, 64).ok());  // no wait for compute
  rig.device.host_busy(1000);
  EXPECT_EQ(rig.device.num_races(), 1);
}

TEST(SimMemoryTest, ADestinationWrittenDuringTheCopyIsARace) {
  CopyRig rig;
  std::uint8_t* const data = rig.data.as<std::uint8_t>();
  ASSERT_TRUE(kernel(*rig.compute, 50, [=] { data[63] = 9; }).ok());
  ASSERT_TRUE(rig.h2d->copy_to_device(data, rig.in.data(), 64).ok());
  rig.device.host_busy(1000);
  EXPECT_EQ(data[63], 1);
  EXPECT_EQ(rig.device.num_races(), 1);
}

TEST(SimMemoryTest, MemoryHasItsLimitAndComesBack) {
  SimConfig config = free_config();
  config.total_memory_bytes = 1000;
  SimDevice device(config);
  {
    const Buffer most = device.allocate(900).value();
    EXPECT_EQ(device.allocate(101).status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(device.info().value().free_memory_bytes, 100u);
  }
  EXPECT_TRUE(device.allocate(1000).ok());
}

TEST(SimMemoryTest, CountersCountWhatTheDeviceLayerCounts) {
  CopyRig rig;
  const DeviceCounters before = rig.device.counters();
  std::vector<std::uint8_t> pageable(64);
  const auto done = rig.event();
  EXPECT_EQ(rig.h2d->copy_to_device(rig.data.data(), pageable.data(), 64).code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.h2d->record(*done).ok());
  ASSERT_TRUE(done->synchronize().ok());
  ASSERT_TRUE(rig.h2d->synchronize().ok());
  const DeviceCounters after = rig.device.counters();
  EXPECT_EQ(after.allocations - before.allocations, 1);
  EXPECT_EQ(after.pageable_copies - before.pageable_copies, 1);
  EXPECT_EQ(after.synchronizations - before.synchronizations, 1);
  EXPECT_EQ(after.event_waits - before.event_waits, 1);
}

// --- Faults -------------------------------------------------------------------------------------

TEST(SimFaultTest, AFailingCallNamesItselfAndDoesNothing) {
  SimConfig config = free_config();
  config.faults.failing_calls = {{.call = SimCall::kEnqueueKernel, .number = 2}};
  Rig rig(config);
  int num_runs = 0;
  const auto count_run = [&] { ++num_runs; };
  EXPECT_TRUE(kernel(*rig.compute, 10, count_run).ok());
  const Status failed = kernel(*rig.compute, 10, count_run);
  EXPECT_EQ(failed.to_string(),
            "device error: simulated fault: enqueue_kernel 2, call 5, stream compute");
  EXPECT_TRUE(kernel(*rig.compute, 10, count_run).ok());
  EXPECT_TRUE(rig.compute->synchronize().ok()) << "a call that failed poisons nothing";
  EXPECT_EQ(num_runs, 2);
}

TEST(SimFaultTest, AnyCallCanFailByItsNumber) {
  Rig clean;
  {
    const auto done = clean.event();
    ASSERT_TRUE(kernel(*clean.compute, 10).ok());
    ASSERT_TRUE(clean.compute->record(*done).ok());
    ASSERT_TRUE(done->synchronize().ok());
  }
  const std::int64_t num_calls = clean.device.faults().num_calls(SimCall::kAny);
  EXPECT_EQ(num_calls, 7);
  EXPECT_EQ(clean.device.faults().num_calls(SimCall::kCreateStream), 3);
  for (std::int64_t number = 4; number <= num_calls; ++number) {
    SimConfig config = free_config();
    config.faults.failing_calls = {{.call = SimCall::kAny, .number = number}};
    Rig rig(config);
    const auto made = rig.device.create_event();
    int num_failed = made.ok() ? 0 : 1;
    if (made.ok()) {
      const std::unique_ptr<Event>& done = *made;
      num_failed += kernel(*rig.compute, 10).ok() ? 0 : 1;
      num_failed += rig.compute->record(*done).ok() ? 0 : 1;
      num_failed += done->synchronize().ok() ? 0 : 1;
    }
    EXPECT_EQ(num_failed, 1) << "call " << number;
  }
}

TEST(SimFaultTest, AFailingOpPoisonsItsStreamAndThoseThatWaitForIt) {
  SimConfig config = free_config();
  config.faults.failing_ops = {2};
  Rig rig(config);
  const auto before = rig.event();
  const auto after = rig.event();
  std::string log;
  ASSERT_TRUE(kernel(*rig.compute, 10, [&] { log += "1"; }).ok());
  ASSERT_TRUE(rig.compute->record(*before).ok());
  ASSERT_TRUE(kernel(*rig.compute, 10, [&] { log += "2"; }).ok());
  ASSERT_TRUE(kernel(*rig.compute, 10, [&] { log += "3"; }).ok());
  ASSERT_TRUE(rig.compute->record(*after).ok());
  ASSERT_TRUE(rig.d2h->wait(*after).ok());
  ASSERT_TRUE(kernel(*rig.d2h, 10, [&] { log += "4"; }).ok());
  ASSERT_TRUE(kernel(*rig.h2d, 10, [&] { log += "5"; }).ok());

  EXPECT_FALSE(after->is_complete().value()) << "the host cannot know yet";
  EXPECT_TRUE(before->synchronize().ok());
  const std::string expected = "device error: simulated fault: op 2 (kernel), stream compute";
  EXPECT_EQ(after->synchronize().to_string(), expected);
  EXPECT_EQ(after->is_complete().status().to_string(), expected);
  EXPECT_EQ(rig.d2h->synchronize().to_string(), expected);
  EXPECT_TRUE(rig.h2d->synchronize().ok());
  EXPECT_EQ(log, "15");
  EXPECT_EQ(rig.device.timeline("compute").size(), 2u) << "skipped work takes no time";
  EXPECT_TRUE(rig.device.timeline("d2h").empty());
}

TEST(SimFaultTest, WorkOfAGraphCountsAtEveryLaunch) {
  SimConfig config = free_config();
  config.faults.failing_ops = {3};
  Rig rig(config);
  ASSERT_TRUE(rig.compute->begin_capture().ok());
  ASSERT_TRUE(kernel(*rig.compute, 10).ok());
  ASSERT_TRUE(kernel(*rig.compute, 10).ok());
  const std::unique_ptr<Graph> graph = rig.compute->end_capture().value();
  ASSERT_TRUE(rig.compute->launch(*graph).ok());
  EXPECT_TRUE(rig.compute->synchronize().ok());
  ASSERT_TRUE(rig.compute->launch(*graph).ok());
  EXPECT_EQ(rig.compute->synchronize().code(), StatusCode::kDeviceError);
}

TEST(SimFaultTest, AHangingOpEndsNoWaitWithABound) {
  SimConfig config = free_config();
  config.faults.hanging_ops = {2};
  Rig rig(config);
  const auto before = rig.event();
  const auto after = rig.event();
  std::string log;
  ASSERT_TRUE(kernel(*rig.compute, 10, [&] { log += "1"; }).ok());
  ASSERT_TRUE(rig.compute->record(*before).ok());
  ASSERT_TRUE(kernel(*rig.compute, 10, [&] { log += "2"; }).ok());
  ASSERT_TRUE(rig.compute->record(*after).ok());
  EXPECT_TRUE(before->synchronize_within(10).value());
  EXPECT_EQ(rig.device.now_ns(), 10);
  EXPECT_FALSE(after->synchronize_within(500).value());
  EXPECT_EQ(rig.device.now_ns(), 510) << "not longer than it was told";
  EXPECT_FALSE(after->is_complete().value());
  EXPECT_EQ(log, "1");
  ASSERT_TRUE(after->synchronize().ok()) << "who has no bound sits it out";
  EXPECT_GE(rig.device.now_ns(), kSimHangNs);
  EXPECT_EQ(log, "12");
}

std::int64_t slow_run_ns(std::uint64_t seed) {
  SimConfig config = free_config();
  config.faults.slow_probability = 0.3;
  config.faults.max_slowdown = 4;
  config.faults.seed = seed;
  Rig rig(config);
  return run_steps(rig, 2, 50, 1000, 100);
}

TEST(SimFaultTest, SlowWorkFollowsTheSeed) {
  EXPECT_EQ(slow_run_ns(1), slow_run_ns(1));
  EXPECT_NE(slow_run_ns(1), slow_run_ns(2));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_GT(slow_run_ns(seed), 50 * 1000 + 100);
    EXPECT_LT(slow_run_ns(seed), 4 * 50 * 1000 + 100);
  }
}

}  // namespace
}  // namespace gapless
