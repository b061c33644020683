#include "base/thread_priority.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

namespace gapless {
namespace {

// Added to the process's own niceness: a third of another thread's share.
constexpr int kLoweredNiceness = 5;

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

}  // namespace gapless
