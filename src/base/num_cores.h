// How many processor cores this process may use.
#pragma once

namespace gapless {

// Those that its threads may run on, at least 1. Fewer than the machine has where somebody pinned the process (taskset, a
// container's CPU set), which std::thread::hardware_concurrency does not tell. Any thread.
int num_usable_cores();

}  // namespace gapless
