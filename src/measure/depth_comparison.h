// What running ahead gains or costs over whole windows: tokens per second of the host's clock, fills
// included, at several depths of one loop.
//
// One loop serves all depths (Loop::set_active_depth), so buffers, graphs and caches are the same.
// Every repeat goes through all depths, each time in the other direction, so that neither a slow
// drift of the machine nor the order looks like a difference between them.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/host_clock.h"
#include "base/status.h"
#include "measure/closed_loop.h"
#include "measure/workload.h"
#include "pipeline/loop.h"

namespace gapless {

struct DepthRun {
  int num_streams = 0;
  int depth = 0;
  std::vector<double> tokens_per_s;  // one for each repeat
  // Of all repeats.
  std::int64_t num_tokens = 0;
  std::int64_t num_answers = 0;
  std::int64_t num_decode_steps = 0;
  std::int64_t num_fill_steps = 0;
  std::int64_t num_rows = 0;         // of decode steps
  std::int64_t num_zombies = 0;      // of those
  std::vector<double> dead_step_ns;  // forward and sampling of decode steps that nobody lived in
  std::int64_t forbidden_calls = 0;

  void add(const ClosedLoopWindow& window);
  double median_tokens_per_s() const;
  double mean_tokens() const;  // of an answer
  double zombie_share() const;
};

// options.num_streams clients, at each of `depths` <= loop.depth(). Conditions as run_closed_loop's.
StatusOr<std::vector<DepthRun>> compare_depths(Loop& loop, HostClock& clock,
                                               const PromptSource& prompts,
                                               const ClosedLoopOptions& options,
                                               std::span<const int> depths, int repeats);

// Medians of the repeats, a's over b's, less 1.
double gain_over(const DepthRun& a, const DepthRun& b);

// One line for each run; the gain is that over the same number of streams at the first depth.
std::string depth_table(std::span<const DepthRun> runs);
boost::json::array to_json(std::span<const DepthRun> runs);

}  // namespace gapless
