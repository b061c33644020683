// gapless bench overlap --short-answers: answers of three tokens, where running ahead has least to
// gain and most to lose, at depths 1 and 2 over the host's clock.
#pragma once

#include <vector>

#include "base/status.h"
#include "bench_options.h"
#include "measure/workload.h"

namespace gapless {

struct ShortAnswersOptions {
  BenchOptions bench;
  Workload workload;
  std::vector<int> streams;
  double seconds = 2;
  double warm_up_seconds = 0.3;
  int repeats = 5;
};

Status run_short_answers(const ShortAnswersOptions& options);

}  // namespace gapless
