#include "base/num_cores.h"

#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace gapless {

int num_usable_cores() {
#if defined(__linux__)
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) == 0) return std::max(1, CPU_COUNT(&usable));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace gapless
