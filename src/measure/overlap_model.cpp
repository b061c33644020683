#include "measure/overlap_model.h"

#include "base/check.h"

namespace gapless {

double growing_share(std::span<const PeriodPoint> points, int num_streams, double dead_step_share) {
  const PeriodPoint* before = nullptr;
  for (const PeriodPoint& point : points) {
    if (point.num_streams != num_streams) {
      before = &point;
      continue;
    }
    if (before == nullptr || num_streams == 1) return dead_step_share;
    const double slope = (point.period - before->period) / (num_streams - before->num_streams);
    return num_streams * slope / point.period;
  }
  GAPLESS_CHECK_MSG(false, "the period of this number of streams was not measured");
  return 0;
}

double zombie_tax(int depth, double mean_tokens, double growing_share) {
  return (depth - 1) / mean_tokens * growing_share;
}

double predicted_gain(double blocking_period, double pipelined_period, double zombie_tax) {
  return blocking_period / pipelined_period * (1 - zombie_tax) - 1;
}

}  // namespace gapless
