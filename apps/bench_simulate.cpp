// gapless bench simulate: the Photon article's six rows, run by the real loop on the simulated
// device.
#include <boost/json/array.hpp>
#include <cmath>
#include <memory>

#include "base/limits.h"
#include "bench_options.h"
#include "engine_options.h"
#include "sim/simulate_overlap.h"

namespace gapless {
namespace {

struct SimulateOptions {
  OverlapOptions overlap;
  std::string json;
  std::string commit;
};

struct SimulatedRow {
  OverlapCase given;
  OverlapResult result;
};

void print_rows(const std::vector<SimulatedRow>& rows) {
  fmt::print("{:<10} {:>7} | {:>16} | {:>16} | {:>5} {:>7} | {:>9} {:>9} {:>9} | {:>8} {:>8}\n", "",
             "", "blocking ms", "pipelined ms", "", "", "gain:", "", "", "article:", "");
  fmt::print(
      "{:<10} {:>7} | {:>9} {:>6} | {:>9} {:>6} | {:>5} {:>7} | {:>9} {:>9} {:>9} | {:>8} "
      "{:>8}\n",
      "GPU", "streams", "simulated", "given", "simulated", "given", "L", "zombies", "simulated",
      "formula", "off by", "predict.", "observed");
  for (const SimulatedRow& row : rows) {
    const OverlapCase& given = row.given;
    const OverlapResult& result = row.result;
    fmt::print(
        "{:<10} {:>7} | {:>9.3f} {:>6.2f} | {:>9.3f} {:>6.2f} | {:>5.0f} {:>6.2f}% | "
        "{:>+8.1f}% {:>+8.1f}% {:>+9.2f} | {:>+7.1f}% {:>+7.1f}%\n",
        given.gpu, given.streams, result.blocking.period_ms, given.block_ms,
        result.pipelined.period_ms, given.period_ms, given.mean_tokens,
        100 * result.pipelined.zombie_share, result.gain_percent, predicted_gain(given),
        result.gain_percent - given.article_predicted, given.article_predicted,
        given.article_observed);
  }
}

boost::json::object to_json(const OverlapRun& run) {
  return {{"period_ms", rounded(run.period_ms, 4)},
          {"tokens_per_s", rounded(run.tokens_per_s, 1)},
          {"zombie_share", rounded(run.zombie_share, 5)},
          {"device_busy_share", rounded(run.busy_share, 5)}};
}

boost::json::object to_json(const SimulatedRow& row) {
  const OverlapCase& given = row.given;
  return {{"gpu", given.gpu},
          {"streams", given.streams},
          {"given", boost::json::object{{"forward_ms", given.forward_ms},
                                        {"sampling_ms", given.sampling_ms},
                                        {"pipelined_ms", given.period_ms},
                                        {"blocking_ms", given.block_ms},
                                        {"L", given.mean_tokens},
                                        {"s", rounded(given.row_share, 4)}}},
          {"blocking", to_json(row.result.blocking)},
          {"pipelined", to_json(row.result.pipelined)},
          {"gain_percent", rounded(row.result.gain_percent, 2)},
          {"formula_percent", rounded(predicted_gain(given), 2)},
          {"article_predicted_percent", given.article_predicted},
          {"article_observed_percent", given.article_observed},
          {"off_by_points", rounded(row.result.gain_percent - given.article_predicted, 2)}};
}

Status run_simulate(const SimulateOptions& options) {
  std::vector<SimulatedRow> rows;
  boost::json::array json;
  double worst = 0;
  for (const OverlapCase& given : article_cases()) {
    GAPLESS_ASSIGN_OR_RETURN(const OverlapResult result, simulate_overlap(given, options.overlap));
    rows.push_back({given, result});
    json.push_back(to_json(rows.back()));
    worst = std::max(worst, std::abs(result.gain_percent - given.article_predicted));
  }
  print_rows(rows);
  fmt::print("largest distance from the article's predicted column: {:.2f} points\n", worst);
  if (options.json.empty()) return ok_status();
  ResultHeader header;
  header.commit = options.commit;
  header.device = "simulated";
  header.model = "scripted step times of the Photon article";
  header.ceiling = "none";
  return write_result(options.json, header,
                      {{"benchmark", "simulate"},
                       {"spread", "none: virtual time, one seed"},
                       {"seed", options.overlap.seed},
                       {"depth", options.overlap.depth},
                       {"answers_per_stream", options.overlap.requests_per_stream},
                       {"largest_distance_points", rounded(worst, 2)},
                       {"rows", json}});
}

}  // namespace

void add_bench_simulate_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = bench.add_subcommand(
      "simulate", "The Photon article's table, simulated with this engine's own loop");
  command->add_option("--seed", options->overlap.seed, "Of the answers' lengths")
      ->capture_default_str();
  command->add_option("--depth", options->overlap.depth, "Steps in flight of the pipelined run")
      ->check(CLI::Range(2, kMaxDepth))
      ->capture_default_str();
  command->add_option("--answers", options->overlap.requests_per_stream, "Per stream")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--json", options->json, "File to write the result to");
  command->add_option("--commit", options->commit,
                      "Commit to note in the result, where git cannot be asked");
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_simulate(*options)); }; });
}

}  // namespace gapless
