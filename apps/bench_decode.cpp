// gapless bench decode: the time of a whole decode step (forward and sampling, stamped by the
// device) at depth 2, beside the bytes that it must move; and what rows that are done cost a step.
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "bench_options.h"
#include "dead_rows.h"
#include "engine_options.h"
#include "measure/measured_run.h"

namespace gapless {
namespace {

struct DecodeBenchOptions {
  BenchOptions bench;
  Workload workload{.name = "plain", .random_lengths = false};
  std::vector<int> rows{1, 8, 32};
  int depth = 2;
  double seconds = 3;
};

constexpr int kDeadRowsRepeats = 40;  // steps of each measurement

struct DecodePoint {
  int rows = 0;
  double context = 0;
  std::int64_t num_steps = 0;
  Spread step_ns, period_ns, forward_ns, sampling_ns;
  std::int64_t bytes = 0;
  double bubble_us = 0;
  // Of a layer with experts, in the mean of the steps that were measured and of those before them; 0: not known.
  double experts = 0;

  double gb_per_s() const { return static_cast<double>(bytes) / step_ns.median; }
};

// What a step must read: pages that all rows have in common once.
std::int64_t bytes_of_step(const Workload& workload, const DecoderModel& model, int rows,
                           int context, double experts) {
  const StepModelInfo& info = model.info();
  const bool shares = workload.image && workload.shared_image && info.image_tokens > 0;
  const std::int64_t prefix = shares ? 1 + info.image_tokens : 0;
  const auto counted = experts > 0 ? std::optional(experts) : std::nullopt;
  return model.decode_step_bytes(rows, context, counted) -
         (rows - 1) * (prefix / kPageTokens * kPageTokens) * info.kv_token_bytes;
}

// That a layer of a step of so many live rows read.
double mean_experts(const ChosenExperts& before, const ChosenExperts& after, int rows) {
  const std::uint64_t layers = after.layers[rows] - before.layers[rows];
  const std::uint64_t experts = after.experts[rows] - before.experts[rows];
  return layers == 0 ? 0 : static_cast<double>(experts) / static_cast<double>(layers);
}

StatusOr<DecodePoint> measure_point(const DecodeBenchOptions& options, LoadedModel& model,
                                    Loop& loop, HostClock& clock, const PromptSource& prompts,
                                    int rows) {
  ClosedLoopOptions loop_options;
  loop_options.num_streams = rows;
  loop_options.warm_up_ns = static_cast<std::int64_t>(options.seconds * 0.2e9);
  loop_options.window_ns = static_cast<std::int64_t>(options.seconds * 1e9);
  GAPLESS_ASSIGN_OR_RETURN(const ChosenExperts before, model.model->chosen_experts());
  GAPLESS_ASSIGN_OR_RETURN(const ClosedLoopWindow window,
                           run_closed_loop(loop, clock, prompts, loop_options));
  const StepStatistics steps = step_statistics(window.records, rows);
  if (steps.step_ns.empty()) {
    return invalid_argument("{} rows: no full decode step in {} s", rows, options.seconds);
  }
  StepAccounts accounts;
  accounts.add(window);
  DecodePoint point;
  point.rows = rows;
  point.context = steps.mean_context();
  point.num_steps = steps.num_full_steps;
  point.step_ns = spread_of(steps.step_ns);
  point.period_ns = spread_of(steps.period_ns);
  point.forward_ns = spread_of(steps.forward_ns);
  point.sampling_ns = spread_of(steps.sampling_ns);
  GAPLESS_ASSIGN_OR_RETURN(const ChosenExperts after, model.model->chosen_experts());
  point.experts = mean_experts(before, after, rows);
  point.bytes = bytes_of_step(options.workload, *model.model, rows,
                              static_cast<int>(std::lround(point.context)), point.experts);
  point.bubble_us = accounts.bubble_us_per_step();
  return point;
}

void print_header() {
  fmt::print("{:>4} {:>8} {:>6} | {:>9} {:>19} | {:>8} {:>8} {:>8} | {:>8} {:>7} {:>6} {:>9}\n",
             "rows", "context", "steps", "step ms", "p10 .. p90", "forward", "sampling", "period",
             "MB/step", "GB/s", "peak", "tokens/s");
}

void print_point(const DecodePoint& point, double peak_tb_s) {
  const double share = peak_tb_s > 0 ? point.gb_per_s() / (peak_tb_s * 1e3) : 0;
  fmt::print(
      "{:>4} {:>8.0f} {:>6} | {:>9.4f} {:>8.4f} .. {:>7.4f} | {:>8.4f} {:>8.4f} {:>8.4f} | "
      "{:>8.1f} {:>7.0f} {:>6} {:>9.0f}\n",
      point.rows, point.context, point.num_steps, point.step_ns.median / 1e6,
      point.step_ns.p10 / 1e6, point.step_ns.p90 / 1e6, point.forward_ns.median / 1e6,
      point.sampling_ns.median / 1e6, point.period_ns.median / 1e6,
      static_cast<double>(point.bytes) / 1e6, point.gb_per_s(),
      peak_tb_s > 0 ? fmt::format("{:.1f}%", 100 * share) : "-",
      point.rows * 1e9 / point.period_ns.median);
  if (point.experts > 0) fmt::print("     {:.2f} experts of a layer\n", point.experts);
  std::fflush(stdout);
}

boost::json::object to_json(const Spread& spread_ns) {
  const auto ms = [](double ns) { return rounded(ns / 1e6, 5); };
  return {{"median", ms(spread_ns.median)}, {"p10", ms(spread_ns.p10)}, {"p90", ms(spread_ns.p90)}};
}

boost::json::object to_json(const DecodePoint& point, double peak_tb_s) {
  boost::json::object json{{"rows", point.rows},
                           {"mean_context", rounded(point.context, 1)},
                           {"steps", point.num_steps},
                           {"step_ms", to_json(point.step_ns)},
                           {"forward_ms", to_json(point.forward_ns)},
                           {"sampling_ms", to_json(point.sampling_ns)},
                           {"period_ms", to_json(point.period_ns)},
                           {"bubble_us_per_step", rounded(point.bubble_us, 2)},
                           {"bytes_per_step", point.bytes},
                           {"gb_per_s", rounded(point.gb_per_s(), 1)}};
  if (point.experts > 0) json["experts_per_layer"] = rounded(point.experts, 2);
  if (peak_tb_s > 0) {
    json["percent_of_ceiling"] = rounded(point.gb_per_s() / (peak_tb_s * 10), 2);
  }
  return json;
}

Status run_decode(const DecodeBenchOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                           load_bench_model(options.bench));
  GAPLESS_ASSIGN_OR_RETURN(const ResultHeader header, result_header(options.bench, *model));
  GAPLESS_ASSIGN_OR_RETURN(const PromptSource prompts,
                           PromptSource::create(*model->device, model->model->info(),
                                                spatial_tokens(*model), options.workload));
  RealHostClock clock;
  LoopOptions loop_options;
  loop_options.depth = options.depth;
  loop_options.ledger_capacity = std::size_t{1} << 15;
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Loop> loop,
                           Loop::create(*model->device, *model->model, clock, loop_options));
  const double mean_tokens = options.workload.mean_tokens;
  fmt::print("{} on {}, depth {}\n", header.model, header.device, options.depth);
  print_header();
  boost::json::array points;
  for (const int rows : options.rows) {
    if (rows > model->model->limits().max_seats) {
      fmt::print("{:>4} rows: this model has {} seats on this device\n", rows,
                 model->model->limits().max_seats);
      continue;
    }
    GAPLESS_ASSIGN_OR_RETURN(const DecodePoint point,
                             measure_point(options, *model, *loop, clock, prompts, rows));
    print_point(point, options.bench.peak_bandwidth_tb_s);
    points.push_back(to_json(point, options.bench.peak_bandwidth_tb_s));
  }
  GAPLESS_ASSIGN_OR_RETURN(
      const std::vector<DeadRowsPoint> dead_rows,
      measure_dead_rows(*model, options.rows, options.workload.context, kDeadRowsRepeats));
  fmt::print("\nrows that are done; zombie tax of answers of {} tokens at depth 2\n{}", mean_tokens,
             dead_rows_table(dead_rows, mean_tokens));
  if (options.bench.json.empty()) return ok_status();
  return write_result(options.bench.json, header,
                      {{"benchmark", "decode"},
                       {"depth", options.depth},
                       {"shared_image", options.workload.shared_image},
                       {"random_tokens", options.workload.random_tokens},
                       {"spread", "p10 and p90 of the steps; step = forward and sampling"},
                       {"points", points},
                       {"zombie_tax_of_answers_of", mean_tokens},
                       {"dead_rows", to_json(dead_rows, mean_tokens)}});
}

}  // namespace

void add_bench_decode_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<DecodeBenchOptions>();
  CLI::App* command =
      bench.add_subcommand("decode", "Time and bandwidth of whole decode steps in steady state");
  add_bench_options(*command, options->bench);
  add_workload_options(*command, options->workload);
  command->add_option("--rows", options->rows, "Sequences in a step")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxSeats))
      ->capture_default_str();
  command->add_option("--depth", options->depth, "Steps in flight")
      ->check(CLI::Range(1, kMaxDepth))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "Measured time per point")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, &chosen] {
    ask_for_rows(options->bench, options->rows);
    chosen = [options] { return report(run_decode(*options)); };
  });
}

}  // namespace gapless
