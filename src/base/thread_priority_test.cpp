#include "base/thread_priority.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

namespace gapless {
namespace {

// What sched_getattr(2) gives; VER0 of it.
struct Scheduling {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t niceness;
  std::uint32_t priority;
  std::uint64_t turn_ns, deadline_ns, period_ns;
};

Scheduling scheduling_of_this_thread() {
  Scheduling scheduling{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, &scheduling, sizeof scheduling, 0u), 0);
  return scheduling;
}

TEST(ThreadPriorityTest, WhoShouldComeSoonAsksForShortTurnsAndKeepsItsShare) {
  std::thread([] {
    const Scheduling before = scheduling_of_this_thread();
    if (before.turn_ns == 0) GTEST_SKIP() << "this Linux has turns of one length";
    come_soon();
    const Scheduling after = scheduling_of_this_thread();
    EXPECT_LT(after.turn_ns, before.turn_ns);
    EXPECT_EQ(after.policy, before.policy);
    EXPECT_EQ(after.niceness, before.niceness);
  }).join();
}

TEST(ThreadPriorityTest, WhoYieldsHasAHigherNicenessAndOthersKeepTheirs) {
  const int own = scheduling_of_this_thread().niceness;
  std::thread([own] {
    yield_to_other_threads();
    const int lowered = scheduling_of_this_thread().niceness;
    EXPECT_GT(lowered, own);
    yield_to_other_threads();
    come_soon();
    EXPECT_EQ(scheduling_of_this_thread().niceness, lowered);
  }).join();
  EXPECT_EQ(scheduling_of_this_thread().niceness, own);
}

}  // namespace
}  // namespace gapless
