#include "pipeline/run_ahead.h"

#include <algorithm>
#include <cmath>

namespace gapless {
namespace {

// Rows that p is an average of, and steps that T and H are. When a batch of 64 ends all at once, p must
// not look like short answers for the next ten steps.
constexpr double kRowsRemembered = 2048;
constexpr double kStepsRemembered = 32;
// A device that waits for the host waits for a copy down, a wake-up and a launch as well: on an H200
// 23 to 40 us a step where the host works 11 to 22. The rest leans towards running ahead, which is
// right when nobody waits for the seats of those who end.
constexpr double kIdlePerWork = 3;

void move_towards(double& average, double value, double weight) {
  average += weight * (value - average);
}

}  // namespace

void RunAhead::committed(const Step& step) {
  if (step.num_rows == 0) return;
  const double rows = step.num_rows;
  move_towards(ending_share_, step.num_ended / rows, std::min(1.0, rows / kRowsRemembered));
  const double weight = any_ ? 1 / kStepsRemembered : 1;
  move_towards(step_ns_, static_cast<double>(step.step_ns), weight);
  move_towards(host_ns_, static_cast<double>(step.host_ns), weight);
  any_ = true;
}

bool RunAhead::pays(int num_rows) const {
  const double some_live = 1 - std::pow(ending_share_, num_rows - 1);
  return ending_share_ * some_live * step_ns_ <= kIdlePerWork * host_ns_;
}

}  // namespace gapless
