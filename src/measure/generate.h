// A batch of long answers from the first request to the last token, as transformers' benchmark of
// continuous batching does it (benchmark_v2/benchmark_scripts/continuous_batching_overall.py): prompts
// of random tokens, answers of one length, greedy, no end but the limit.
//
// Unlike the other benchmarks nothing is left out of the time: prefills, the steps that fill and empty
// the batch, and the growing context are in it.
#pragma once

#include <cstdint>

#include "base/host_clock.h"
#include "base/status.h"
#include "observe/ledger.h"
#include "pipeline/loop.h"
#include "step/step_model.h"

namespace gapless {

struct GenerateWorkload {
  int num_prompts = 32;
  int prompt_tokens = 256;
  int new_tokens = 8192;  // of each answer
  std::uint64_t seed = 0;
};

struct GenerateRun {
  std::int64_t host_ns = 0;  // from before the first submit to behind the last token's commit
  std::int64_t first_token_ns = 0;  // of those, until every prompt had its first token
  std::int64_t num_tokens = 0;      // committed
  LedgerTotals totals;

  double tokens_per_s() const;
  // Inside the host's time, so that what is before the first step and behind the last one counts as idle.
  double device_busy_share() const;
};

// The caller's thread is the engine thread. The loop must be idle and without a thread of its own; it is
// left idle. InvalidArgument: the model's context is too short. An error of the loop or of an answer ends
// the run.
StatusOr<GenerateRun> run_generate(Loop& loop, HostClock& clock, const StepModelInfo& info,
                                   const GenerateWorkload& workload);

}  // namespace gapless
