#include "base/num_cores.h"

#include <gtest/gtest.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <thread>

namespace gapless {
namespace {

#if defined(__linux__)
TEST(NumCoresTest, CountsThoseThatTheProcessMayUse) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(num_usable_cores(), CPU_COUNT(&before));
  // In a thread of its own, so that the others keep theirs.
  std::thread pinned([&before] {
    cpu_set_t one;
    CPU_ZERO(&one);
    int core = 0;
    while (!CPU_ISSET(core, &before)) ++core;
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(num_usable_cores(), 1);
  });
  pinned.join();
}
#endif

}  // namespace
}  // namespace gapless
