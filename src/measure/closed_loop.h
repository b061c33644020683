// Drives an engine loop with a fixed number of clients, each of which asks again as soon as it is
// answered, and measures a window of the steady state.
//
// The caller's thread is the engine thread: run_closed_loop calls Loop::tick(), which is all that
// the engine's own thread does, so the window begins and ends between two ticks. A client
// submits its next prompt from on_finished (about a microsecond that counts as the engine's
// commit).
#pragma once

#include <cstdint>
#include <vector>

#include "base/host_clock.h"
#include "base/status.h"
#include "measure/workload.h"
#include "observe/ledger.h"
#include "pipeline/loop.h"

namespace gapless {

struct ClosedLoopOptions {
  int num_streams = 1;
  std::int64_t warm_up_ns = 0;     // after every client's first token
  int warm_up_steps = 0;           // and at least so many steps
  std::int64_t window_ns = 0;      // the window lasts at least so long
  int window_steps = 0;            // and has at least so many steps,
  int max_window_steps = 1 << 15;  // and ends at so many (the ledger keeps no more)
};

struct ClosedLoopWindow {
  LedgerTotals totals;
  // Of the window, in order of launch. The first one is where the measured time begins.
  std::vector<StepRecord> records;
  std::vector<HostPhase> phases;  // whatever the ledger still has, older ones included
  std::int64_t host_ns = 0;       // of the engine thread
  std::int64_t awake_ns = 0;      // of those, on a core
  std::int64_t num_tokens = 0;
  std::int64_t num_answers = 0;
  std::int64_t num_all_tokens = 0;  // with those before and after the window
  std::int64_t forbidden_calls = 0;
};

// Leaves the loop idle. The loop must be idle, without a thread of its own, and have a
// ledger_capacity of at least max_window_steps. An error of the loop, or of any answer, ends the
// run.
StatusOr<ClosedLoopWindow> run_closed_loop(Loop& loop, HostClock& clock,
                                           const PromptSource& prompts,
                                           const ClosedLoopOptions& options);

}  // namespace gapless
