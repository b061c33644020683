#include "base/thread_priority.h"

#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace gapless {
namespace {

// Added to the process's own niceness: a third of another thread's share.
constexpr int kLoweredNiceness = 5;

// Turns of a thread that should come soon. The least that Linux takes; its own default is 3 ms or so.
constexpr std::uint64_t kShortTurnNs = 100'000;

// What sched_setattr(2) takes, which not every C library declares.
struct SchedulingRequest {
  std::uint32_t size = sizeof(SchedulingRequest);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t niceness = 0;
  std::uint32_t priority = 0;
  std::uint64_t turn_ns = 0;
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

// The least that prctl takes.
constexpr unsigned long kTimerSlackNs = 1;

}  // namespace

void wake_on_time() {
  thread_local bool is_punctual = false;
  if (std::exchange(is_punctual, true)) return;
  (void)prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
}

void yield_to_other_threads() {
  thread_local bool is_lowered = false;
  if (std::exchange(is_lowered, true)) return;
  // Linux gives every thread a value of its own.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()),
                    getpriority(PRIO_PROCESS, 0) + kLoweredNiceness);
}

void come_soon() {
  thread_local bool comes_soon = false;
  if (std::exchange(comes_soon, true)) return;
  const auto thread = static_cast<id_t>(gettid());
  SchedulingRequest request;
  request.flags = SCHED_FLAG_KEEP_POLICY;
  request.niceness = getpriority(PRIO_PROCESS, thread);
  request.turn_ns = kShortTurnNs;
  (void)syscall(SYS_sched_setattr, thread, &request, 0u);
}

}  // namespace gapless
