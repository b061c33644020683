#include "measure/depth_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>

#include "measure/result_file.h"
#include "measure/step_statistics.h"

namespace gapless {
namespace {

double over(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// The first run with as many streams: what the others are held against.
const DepthRun& first_of(std::span<const DepthRun> runs, int num_streams) {
  return *std::find_if(runs.begin(), runs.end(),
                       [=](const DepthRun& run) { return run.num_streams == num_streams; });
}

}  // namespace

void DepthRun::add(const ClosedLoopWindow& window) {
  tokens_per_s.push_back(over(window.num_tokens, window.host_ns) * 1e9);
  num_tokens += window.num_tokens;
  num_answers += window.num_answers;
  forbidden_calls += window.forbidden_calls;
  const LedgerTotals& totals = window.totals;
  const std::int64_t decodes = totals.num_steps[static_cast<std::size_t>(StepKind::kDecode)];
  num_decode_steps += decodes;
  num_fill_steps += totals.steps() - decodes;
  num_rows += totals.num_decode_rows;
  num_zombies += totals.num_zombie_rows;
  for (const StepRecord& record : window.records) {
    if (record.kind != StepKind::kDecode || record.num_zombies != record.num_rows) continue;
    dead_step_ns.push_back(static_cast<double>(record.sampling_end_ns - record.forward_begin_ns));
  }
}

double DepthRun::median_tokens_per_s() const {
  return spread_of(tokens_per_s).median;
}

double DepthRun::mean_tokens() const {
  return over(num_tokens, num_answers);
}

double DepthRun::zombie_share() const {
  return over(num_zombies, num_rows);
}

StatusOr<std::vector<DepthRun>> compare_depths(Loop& loop, HostClock& clock,
                                               const PromptSource& prompts,
                                               const ClosedLoopOptions& options,
                                               std::span<const int> depths, int repeats) {
  std::vector<DepthRun> runs;
  for (const int depth : depths) {
    runs.push_back({.num_streams = options.num_streams, .depth = depth});
  }
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      DepthRun& run = runs[repeat % 2 == 0 ? i : runs.size() - 1 - i];
      loop.set_active_depth(run.depth);
      GAPLESS_ASSIGN_OR_RETURN(const ClosedLoopWindow window,
                               run_closed_loop(loop, clock, prompts, options));
      run.add(window);
    }
  }
  return runs;
}

double gain_over(const DepthRun& a, const DepthRun& b) {
  return a.median_tokens_per_s() / b.median_tokens_per_s() - 1;
}

std::string depth_table(std::span<const DepthRun> runs) {
  std::string table = fmt::format(
      "{:>7} {:>5} | {:>9} {:>19} {:>7} | {:>5} {:>8} {:>7} {:>7} | {:>13}\n", "streams", "depth",
      "tokens/s", "lowest .. highest", "gain", "L", "decodes", "fills", "zombies", "dead step, us");
  for (const DepthRun& run : runs) {
    const auto [lowest, highest] =
        std::minmax_element(run.tokens_per_s.begin(), run.tokens_per_s.end());
    const DepthRun& first = first_of(runs, run.num_streams);
    table += fmt::format(
        "{:>7} {:>5} | {:>9.1f} {:>8.1f} .. {:>7.1f} {:>7} | {:>5.2f} {:>8} {:>7} {:>6.2f}% | "
        "{:>13}\n",
        run.num_streams, run.depth, run.median_tokens_per_s(), *lowest, *highest,
        &run == &first ? "" : fmt::format("{:+.2f}%", 100 * gain_over(run, first)),
        run.mean_tokens(), run.num_decode_steps, run.num_fill_steps, 100 * run.zombie_share(),
        run.dead_step_ns.empty() ? "-"
                                 : fmt::format("{:.1f}", spread_of(run.dead_step_ns).median / 1e3));
  }
  return table;
}

boost::json::array to_json(std::span<const DepthRun> runs) {
  boost::json::array json;
  for (const DepthRun& run : runs) {
    boost::json::array repeats;
    for (const double value : run.tokens_per_s) repeats.push_back(rounded(value, 1));
    boost::json::object point{{"streams", run.num_streams},
                              {"depth", run.depth},
                              {"tokens_per_s", rounded(run.median_tokens_per_s(), 1)},
                              {"tokens_per_s_of_each_repeat", std::move(repeats)},
                              {"mean_answer_tokens", rounded(run.mean_tokens(), 3)},
                              {"decode_steps", run.num_decode_steps},
                              {"fill_steps", run.num_fill_steps},
                              {"zombie_share", rounded(run.zombie_share(), 5)},
                              {"forbidden_calls", run.forbidden_calls}};
    const DepthRun& first = first_of(runs, run.num_streams);
    if (&run != &first) point["gain"] = rounded(gain_over(run, first), 5);
    if (!run.dead_step_ns.empty()) {
      const Spread dead = spread_of(run.dead_step_ns);
      point["dead_step_us"] = {{"median", rounded(dead.median / 1e3, 2)},
                               {"p10", rounded(dead.p10 / 1e3, 2)},
                               {"p90", rounded(dead.p90 / 1e3, 2)},
                               {"steps", dead.count}};
    }
    json.push_back(std::move(point));
  }
  return json;
}

}  // namespace gapless
