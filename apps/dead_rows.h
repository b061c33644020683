// What rows that are done cost a decode step: measured one step at a time, without the loop.
#pragma once

#include <boost/json/array.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "measure/step_statistics.h"
#include "model/model_loader.h"

namespace gapless {

// Forward and sampling, ns, as the device stamps them; each of rows with as many cached tokens.
struct DeadRowsPoint {
  int rows = 0;    // B
  Spread live_ns;  // B live rows
  Spread dead_ns;  // B dead rows
  // Where B > 1. Batches are padded to their bucket, as the pipeline pads them.
  Spread without_one_ns;   // B - 1 live rows
  Spread with_one_ns;      // B - 1 live rows and a dead one
  Spread without_half_ns;  // B / 2 live rows
  Spread with_half_ns;     // B / 2 live rows and B - B / 2 dead ones

  double dead_share() const { return dead_ns.median / live_ns.median; }
  // z of depth 2: of B rows one leaves a dead row behind every L / B steps. What that adds to a step,
  // over the step.
  double zombie_tax(double mean_tokens) const;
};

// `context`: cached tokens in the middle of a measurement. Row counts for which there are too few
// seats or pages are left out.
StatusOr<std::vector<DeadRowsPoint>> measure_dead_rows(LoadedModel& model,
                                                       std::span<const int> row_counts, int context,
                                                       int repeats);

std::string dead_rows_table(std::span<const DeadRowsPoint> points, double mean_tokens);
boost::json::array to_json(std::span<const DeadRowsPoint> points, double mean_tokens);

}  // namespace gapless
