// What only the CPU device can show, because its work can be held up and made to fail at will.
#include "device/cpu/cpu_stream.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/cpu/cpu_device.h"

namespace gapless {
namespace {

class CpuStreamTest : public testing::Test {
 protected:
  std::unique_ptr<CpuStream> stream(std::string_view name = "test") {
    return std::make_unique<CpuStream>(device_, name);
  }
  static CpuOp append(std::vector<int>& log, int value) {
    return [&log, value] {
      log.push_back(value);
      return ok_status();
    };
  }
  static CpuOp fail(std::string_view what) {
    return [what] { return make_error(StatusCode::kDeviceError, "{}", what); };
  }

  CpuDevice device_;
};

// Holds up a stream until open().
class Gate {
 public:
  CpuOp op() {
    return [point = point_] { return point->wait(); };
  }
  void open() { point_->reach(ok_status()); }

 private:
  std::shared_ptr<CpuPoint> point_ = std::make_shared<CpuPoint>();
};

// A shell stops a program at Ctrl-Z, and its work with it: that is no step which hangs.
TEST_F(CpuStreamTest, AProcessThatWasStoppedHasNotWaitedAllThatTime) {
  const auto work = stream();
  CpuEvent done(device_);
  Gate gate;
  ASSERT_TRUE(work->enqueue(gate.op()).ok());
  ASSERT_TRUE(work->record(done).ok());
  const pid_t stopped = getpid(), waker = fork();
  ASSERT_NE(waker, -1);
  if (waker == 0) {
    usleep(1'500'000);
    kill(stopped, SIGCONT);
    _exit(0);
  }
  std::thread worker([&] {
    const auto begin = std::chrono::steady_clock::now();
    kill(stopped, SIGSTOP);
    // It may go on for a moment.
    while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(1)) {
    }
    gate.open();
  });
  EXPECT_TRUE(done.synchronize_within(1'200'000'000).value());
  worker.join();
  ASSERT_EQ(waitpid(waker, nullptr, 0), waker);
}

TEST_F(CpuStreamTest, EnqueueDoesNotWaitForTheWork) {
  const auto work = stream();
  CpuEvent done(device_);
  Gate gate;
  ASSERT_TRUE(work->enqueue(gate.op()).ok());
  ASSERT_TRUE(work->record(done).ok());
  EXPECT_FALSE(done.is_complete().value());
  gate.open();
  ASSERT_TRUE(done.synchronize().ok());
  EXPECT_TRUE(done.is_complete().value());
}

// Looked at when the work's turn comes, and at each launch of a graph.
TEST_F(CpuStreamTest, ConditionalWorkRunsOnlyWhereTheConditionHoldsThen) {
  const auto work = stream();
  std::vector<int> log;
  std::uint32_t flag = 1;
  ASSERT_TRUE(work->begin_capture().ok());
  ASSERT_TRUE(work->begin_if(&flag).ok());
  ASSERT_TRUE(work->enqueue(append(log, 1)).ok());
  ASSERT_TRUE(work->enqueue(append(log, 2)).ok());
  ASSERT_TRUE(work->end_if().ok());
  ASSERT_TRUE(work->enqueue(append(log, 3)).ok());
  const auto graph = work->end_capture();
  ASSERT_TRUE(graph.ok());
  flag = 0;
  ASSERT_TRUE(work->launch(**graph).ok());
  ASSERT_TRUE(work->synchronize().ok());
  EXPECT_EQ(log, (std::vector<int>{3}));
  ASSERT_TRUE(work->enqueue([&flag] {
                    flag = 1;
                    return ok_status();
                  })
                  .ok());
  ASSERT_TRUE(work->launch(**graph).ok());
  ASSERT_TRUE(work->synchronize().ok());
  EXPECT_EQ(log, (std::vector<int>{3, 1, 2, 3}));
}

TEST_F(CpuStreamTest, TheConditionIsLookedAtOutsideOfCapturesToo) {
  const auto work = stream();
  std::vector<int> log;
  std::uint32_t flag = 0;
  ASSERT_TRUE(work->begin_if(&flag).ok());
  ASSERT_TRUE(work->enqueue(append(log, 1)).ok());
  ASSERT_TRUE(work->end_if().ok());
  ASSERT_TRUE(work->enqueue(append(log, 2)).ok());
  ASSERT_TRUE(work->synchronize().ok());
  EXPECT_EQ(log, (std::vector<int>{2}));
}

TEST_F(CpuStreamTest, StreamsRunSideBySide) {
  const auto held = stream("held");
  const auto free = stream("free");
  Gate gate;
  ASSERT_TRUE(held->enqueue(gate.op()).ok());
  EXPECT_TRUE(free->synchronize().ok());  // would never return were there one thread for both
  gate.open();
}

TEST_F(CpuStreamTest, AWaitKeepsTheRecordThatWasTheLatestWhenItWasCalled) {
  const auto early = stream("early");
  const auto late = stream("late");
  const auto waiter = stream("waiter");
  CpuEvent event(device_);
  Gate late_gate;
  ASSERT_TRUE(early->record(event).ok());
  ASSERT_TRUE(waiter->wait(event).ok());
  ASSERT_TRUE(late->enqueue(late_gate.op()).ok());
  ASSERT_TRUE(late->record(event).ok());
  // Hangs here if the wait moved on to the later record.
  EXPECT_TRUE(waiter->synchronize().ok());
  EXPECT_FALSE(event.is_complete().value());
  late_gate.open();
  EXPECT_TRUE(event.synchronize().ok());
}

TEST_F(CpuStreamTest, ALaterRecordThatIsReachedFirstDoesNotReleaseAnEarlierWait) {
  const auto slow = stream("slow");
  const auto quick = stream("quick");
  const auto waiter = stream("waiter");
  CpuEvent event(device_);
  CpuEvent waiter_done(device_);
  Gate gate;
  ASSERT_TRUE(slow->enqueue(gate.op()).ok());
  ASSERT_TRUE(slow->record(event).ok());
  ASSERT_TRUE(waiter->wait(event).ok());
  ASSERT_TRUE(waiter->record(waiter_done).ok());
  ASSERT_TRUE(quick->record(event).ok());
  ASSERT_TRUE(event.synchronize().ok());
  EXPECT_FALSE(waiter_done.is_complete().value());
  gate.open();
  EXPECT_TRUE(waiter_done.synchronize().ok());
}

TEST_F(CpuStreamTest, TheFirstFailurePoisonsTheStream) {
  const auto work = stream("compute");
  CpuEvent before(device_);
  CpuEvent after(device_);
  std::vector<int> log;
  ASSERT_TRUE(work->enqueue(append(log, 1)).ok());
  ASSERT_TRUE(work->record(before).ok());
  ASSERT_TRUE(work->enqueue(fail("first failure")).ok());
  ASSERT_TRUE(work->enqueue(append(log, 2)).ok());
  ASSERT_TRUE(work->enqueue(fail("second failure")).ok());
  ASSERT_TRUE(work->record(after).ok());
  EXPECT_TRUE(before.synchronize().ok());
  const Status expected(StatusCode::kDeviceError, "compute: first failure");
  EXPECT_EQ(after.synchronize().to_string(), expected.to_string());
  EXPECT_EQ(after.is_complete().status().to_string(), expected.to_string());
  EXPECT_EQ(work->synchronize().to_string(), expected.to_string());
  EXPECT_EQ(log, std::vector<int>({1}));
}

TEST_F(CpuStreamTest, PoisonFollowsEventsToOtherStreams) {
  const auto broken = stream("broken");
  const auto dependent = stream("dependent");
  const auto bystander = stream("bystander");
  CpuEvent event(device_);
  std::vector<int> log;
  ASSERT_TRUE(broken->enqueue(fail("boom")).ok());
  ASSERT_TRUE(broken->record(event).ok());
  ASSERT_TRUE(dependent->wait(event).ok());
  ASSERT_TRUE(dependent->enqueue(append(log, 1)).ok());
  EXPECT_EQ(dependent->synchronize().message(), "broken: boom");
  EXPECT_TRUE(log.empty());
  EXPECT_TRUE(bystander->synchronize().ok());
}

TEST_F(CpuStreamTest, AnExceptionIsAFailure) {
  const auto work = stream();
  ASSERT_TRUE(work->enqueue([]() -> Status { throw std::runtime_error("thrown"); }).ok());
  EXPECT_EQ(work->synchronize().message(), "test: exception: thrown");
}

TEST_F(CpuStreamTest, AGraphStopsAtItsFirstFailure) {
  const auto work = stream();
  std::vector<int> log;
  ASSERT_TRUE(work->begin_capture().ok());
  ASSERT_TRUE(work->enqueue(append(log, 1)).ok());
  ASSERT_TRUE(work->enqueue(fail("in graph")).ok());
  ASSERT_TRUE(work->enqueue(append(log, 2)).ok());
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  ASSERT_TRUE(work->launch(*graph).ok());
  EXPECT_EQ(work->synchronize().message(), "test: in graph");
  EXPECT_EQ(log, std::vector<int>({1}));
}

TEST_F(CpuStreamTest, AStreamGoesWithItsWorkDone) {
  std::vector<int> log;
  Gate gate;
  {
    const auto work = stream();
    ASSERT_TRUE(work->enqueue(gate.op()).ok());
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(work->enqueue(append(log, i)).ok());
    gate.open();
  }
  EXPECT_EQ(log.size(), 100u);
}

// The order of destruction that would hang were the wait tied to the event or to the other stream.
TEST_F(CpuStreamTest, EventAndProducerMayGoBeforeTheWaiter) {
  std::vector<int> log;
  Gate gate;
  const auto waiter = stream("waiter");
  {
    const auto producer = stream("producer");
    CpuEvent event(device_);
    ASSERT_TRUE(producer->enqueue(gate.op()).ok());
    ASSERT_TRUE(producer->record(event).ok());
    ASSERT_TRUE(waiter->wait(event).ok());
    ASSERT_TRUE(waiter->enqueue(append(log, 1)).ok());
    gate.open();
  }
  EXPECT_TRUE(waiter->synchronize().ok());
  EXPECT_EQ(log, std::vector<int>({1}));
}

TEST(CpuDeviceDeathTest, AStreamThatOutlivesItsDeviceStopsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto device = open_cpu_device();
        const Buffer buffer = device->allocate(16).value();
        device.reset();
      },
      "outlives");
}

TEST(CpuDeviceTest, OneAllocationTooManyIsRefusedWithTheFigures) {
  CpuDevice device;
  const std::size_t total = device.info().value().total_memory_bytes;
  const Buffer some = device.allocate(1024).value();
  EXPECT_EQ(device.info().value().free_memory_bytes, total - 1024);
  const auto refused = device.allocate(total);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("1024 of"), std::string::npos);
}

// Whole pages of these bytes that are in memory.
std::size_t resident_pages(const void* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (at + page - 1) / page * page, last = (at + bytes) / page * page;
  std::vector<unsigned char> pages((last - first) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(first), last - first, pages.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

TEST_F(CpuStreamTest, ALargeFillWithZerosTakesNoMemory) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  Buffer data = device_.allocate(kBytes).value();
  const auto work = stream();
  for (const int value : {1, 0}) {
    ASSERT_TRUE(work->fill_bytes(data.data(), static_cast<std::uint8_t>(value), kBytes).ok());
    ASSERT_TRUE(work->synchronize().ok());
    const std::size_t pages = resident_pages(data.data(), kBytes);
    if (value == 0) {
      EXPECT_LT(pages, 8u);
    } else {
      EXPECT_GT(pages, 8u) << "what is written is there";
    }
  }
}

}  // namespace
}  // namespace gapless
