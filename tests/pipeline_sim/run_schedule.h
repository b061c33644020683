// Runs a schedule through the real loop, single-threaded on the simulated device in virtual time,
// and holds it against the invariants and against a sequential oracle.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/pipeline_sim/schedule.h"

namespace gapless {

struct SimStats {
  int num_stopped = 0;
  int num_length = 0;
  int num_cancelled = 0;
  int num_failed = 0;
  int num_refused = 0;
  int most_running = 0;  // sequences with a seat at one time
  std::int64_t num_steps = 0;
  std::int64_t num_zombie_rows = 0;
  bool seated_beside_zombies = false;  // more rows were taken than there are seats
  bool device_lost = false;
};

struct SimVerdict {
  std::string violation;  // empty: every invariant held
  SimStats stats;
};

struct SimRunOptions {
  // Called between two ticks; may plant a violation.
  std::function<void(Loop&)> after_tick;
  // Looks at the state machine after every tick. Off: only what comes out of the loop is judged.
  bool check_state = true;
};

SimVerdict run_schedule(const Schedule& schedule, const SimRunOptions& options = {});

}  // namespace gapless
