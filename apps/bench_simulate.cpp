// gapless bench simulate: the Photon article's six rows, run by the real loop on the simulated
// device; and with --gpu how fast a GPU would be (bench_simulate_gpu.h).
#include <boost/json/array.hpp>
#include <cmath>
#include <memory>

#include "base/limits.h"
#include "bench_options.h"
#include "bench_simulate_gpu.h"
#include "engine_options.h"
#include "sim/simulate_overlap.h"

namespace gapless {
namespace {

struct SimulateOptions {
  OverlapOptions overlap;
  std::string json;
  std::string commit;
  SimulateGpuOptions gpu;  // its json and commit are those above
};

struct SimulatedRow {
  OverlapCase given;
  OverlapResult result;
};

std::string simulated_and_off(double simulated, double off) {
  return fmt::format("{:.3f} ({:+.3f})", simulated, off);
}

void print_rows(const std::vector<SimulatedRow>& rows) {
  fmt::print(
      "in parentheses: simulated less the article's figure\n"
      "{:<10} {:>7} | {:>21} {:>8} | {:>16} {:>16} | {:>5} {:>8} | {:>9} {:>20} {:>20}\n",
      "GPU", "streams", "forward, sampling ms", "host ms", "blocking ms", "pipelined ms", "L",
      "zombies", "gain", "article's prediction", "its observation");
  for (const SimulatedRow& row : rows) {
    const OverlapCase& given = row.given;
    const OverlapResult& result = row.result;
    const OverlapMiss miss = miss_of(given, result);
    fmt::print(
        "{:<10} {:>7} | {:>14.2f} {:>6.2f} {:>8.2f} | {:>16} {:>16} | {:>5.0f} {:>7.2f}% | "
        "{:>+8.1f}% {:>20} {:>20}\n",
        given.gpu, given.streams, given.forward_ms, given.sampling_ms, given.host_ms(),
        simulated_and_off(result.blocking.period_ms, miss.blocking_ms),
        simulated_and_off(result.pipelined.period_ms, miss.pipelined_ms), given.mean_tokens,
        100 * result.pipelined.zombie_share, result.gain_percent,
        fmt::format("{:+.1f}% ({:+.2f})", given.article_predicted, miss.predicted_points),
        fmt::format("{:+.1f}% ({:+.2f})", given.article_observed, miss.observed_points));
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
  const OverlapMiss miss = miss_of(given, row.result);
  return {{"gpu", given.gpu},
          {"streams", given.streams},
          {"given", boost::json::object{{"forward_ms", given.forward_ms},
                                        {"sampling_ms", given.sampling_ms},
                                        {"host_ms", rounded(given.host_ms(), 4)},
                                        {"L", given.mean_tokens}}},
          {"article", boost::json::object{{"blocking_ms", given.block_ms},
                                          {"pipelined_ms", given.period_ms},
                                          {"predicted_percent", given.article_predicted},
                                          {"observed_percent", given.article_observed}}},
          {"blocking", to_json(row.result.blocking)},
          {"pipelined", to_json(row.result.pipelined)},
          {"gain_percent", rounded(row.result.gain_percent, 2)},
          {"formula_percent", rounded(predicted_gain(given), 2)},
          {"off_by", boost::json::object{{"blocking_ms", rounded(miss.blocking_ms, 4)},
                                         {"pipelined_ms", rounded(miss.pipelined_ms, 4)},
                                         {"predicted_points", rounded(miss.predicted_points, 2)},
                                         {"observed_points", rounded(miss.observed_points, 2)}}}};
}

Status run_simulate(const SimulateOptions& options) {
  std::vector<SimulatedRow> rows;
  boost::json::array json;
  double worst_predicted = 0;
  double worst_observed = 0;
  for (const OverlapCase& given : article_cases()) {
    GAPLESS_ASSIGN_OR_RETURN(const OverlapResult result, simulate_overlap(given, options.overlap));
    rows.push_back({given, result});
    json.push_back(to_json(rows.back()));
    const OverlapMiss miss = miss_of(given, result);
    worst_predicted = std::max(worst_predicted, std::abs(miss.predicted_points));
    worst_observed = std::max(worst_observed, std::abs(miss.observed_points));
  }
  print_rows(rows);
  fmt::print(
      "the gain is off by up to {:.2f} points from the article's prediction, {:.2f} from its "
      "observation\n",
      worst_predicted, worst_observed);
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
                       {"most_off_predicted_points", rounded(worst_predicted, 2)},
                       {"most_off_observed_points", rounded(worst_observed, 2)},
                       {"rows", json}});
}

}  // namespace

void add_bench_simulate_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = bench.add_subcommand("simulate",
                                           "The Photon article's table, simulated with this "
                                           "engine's own loop; or how fast a GPU would be");
  command->add_option("--seed", options->overlap.seed, "Of the answers' lengths")
      ->capture_default_str();
  command->add_option("--depth", options->overlap.depth, "Steps in flight of the pipelined run")
      ->check(CLI::Range(2, kMaxDepth))
      ->capture_default_str();
  command->add_option("--answers", options->overlap.requests_per_stream, "Per stream")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--gpu", options->gpu.gpu,
                      "Instead: predicts Moondream 2's speed on this GPU (\"RTX 3090\", A100, ... "
                      "or all) from what its "
                      "vendor says and the shares of that which were measured");
  command->add_option("--results", options->gpu.results, "Folder of the measured files, with --gpu")
      ->capture_default_str();
  add_result_options(*command, options->json, options->commit);
  command->callback([options, &chosen] {
    chosen = [options] {
      if (options->gpu.gpu.empty()) return report(run_simulate(*options));
      options->gpu.json = options->json;
      options->gpu.commit = options->commit;
      return report(run_simulate_gpu(options->gpu));
    };
  });
}

}  // namespace gapless
