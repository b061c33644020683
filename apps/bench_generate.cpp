// gapless bench generate: a batch of long answers, from the first request to the last token, blocking and
// pipelined.
#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "bench_options.h"
#include "engine_options.h"
#include "measure/generate.h"
#include "pipeline/loop.h"

namespace gapless {
namespace {

struct GenerateOptions {
  BenchOptions bench;
  GenerateWorkload workload;
  std::vector<int> depths{1, 2};
  int repeats = 1;
};

struct GeneratePoint {
  int depth = 0;
  GenerateRun run;
};

void print_generate_header() {
  fmt::print("{:>5} | {:>9} {:>10} {:>11} | {:>8} {:>8} {:>15}\n", "depth", "seconds", "tokens/s",
             "all began s", "busy", "step ms", "bubble us/step");
}

double mean_decode_step_ms(const LedgerTotals& totals) {
  constexpr auto kDecode = static_cast<std::size_t>(StepKind::kDecode);
  const std::int64_t steps = std::max<std::int64_t>(1, totals.num_steps[kDecode]);
  return static_cast<double>(totals.forward_ns[kDecode] + totals.sampling_ns[kDecode]) / 1e6 /
         static_cast<double>(steps);
}

double mean_bubble_us(const LedgerTotals& totals) {
  return static_cast<double>(totals.bubble_ns) / 1e3 /
         static_cast<double>(std::max<std::int64_t>(1, totals.steps()));
}

void print_generate_point(const GeneratePoint& point) {
  const GenerateRun& run = point.run;
  fmt::print("{:>5} | {:>9.2f} {:>10.1f} {:>11.3f} | {:>7.2f}% {:>8.3f} {:>15.2f}\n", point.depth,
             static_cast<double>(run.host_ns) / 1e9, run.tokens_per_s(),
             static_cast<double>(run.first_token_ns) / 1e9, 100 * run.device_busy_share(),
             mean_decode_step_ms(run.totals), mean_bubble_us(run.totals));
  std::fflush(stdout);
}

boost::json::object to_json(const GeneratePoint& point) {
  const GenerateRun& run = point.run;
  return {{"depth", point.depth},
          {"seconds", rounded(static_cast<double>(run.host_ns) / 1e9, 3)},
          {"tokens", run.num_tokens},
          {"tokens_per_s", rounded(run.tokens_per_s(), 1)},
          {"all_first_tokens_s", rounded(static_cast<double>(run.first_token_ns) / 1e9, 4)},
          {"device_busy_percent", rounded(100 * run.device_busy_share(), 3)},
          {"mean_decode_step_ms", rounded(mean_decode_step_ms(run.totals), 4)},
          {"decode_gb_per_s", rounded(run.totals.decode_gb_per_s(), 1)},
          {"steps", run.totals.steps()},
          {"bubble_us_per_step", rounded(mean_bubble_us(run.totals), 2)}};
}

Status run_generate_command(const GenerateOptions& options) {
  BenchOptions bench = options.bench;
  // Unless somebody says otherwise, room for what is asked for.
  const int context = options.workload.prompt_tokens + options.workload.new_tokens;
  if (!bench.max_context && context > kDefaultTextContext) bench.max_context = context;
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_bench_model(bench));
  GAPLESS_ASSIGN_OR_RETURN(const ResultHeader header, result_header(options.bench, *model));
  RealHostClock clock;
  LoopOptions loop_options;
  loop_options.depth = *std::max_element(options.depths.begin(), options.depths.end());
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Loop> loop,
                           Loop::create(*model->device, *model->model, clock, loop_options));
  const GenerateWorkload& work = options.workload;
  // Kernels and graphs are loaded by their first use, which is nobody's request here.
  GenerateWorkload warm_up = work;
  warm_up.new_tokens = std::min(work.new_tokens, 4);
  GAPLESS_RETURN_IF_ERROR(run_generate(*loop, clock, model->model->info(), warm_up).status());
  fmt::print("{} on {}: {} prompts of {} random tokens, {} new tokens each\n", header.model,
             header.device, work.num_prompts, work.prompt_tokens, work.new_tokens);
  print_generate_header();
  boost::json::array points;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (const int depth : options.depths) {
      loop->set_active_depth(depth);
      GeneratePoint point{depth, {}};
      GAPLESS_ASSIGN_OR_RETURN(point.run, run_generate(*loop, clock, model->model->info(), work));
      print_generate_point(point);
      points.push_back(to_json(point));
    }
  }
  if (options.bench.json.empty()) return ok_status();
  return write_result(options.bench.json, header,
                      {{"benchmark", "generate"},
                       {"measures", "from before the first request to behind the last token"},
                       {"spread", "every repeat is given"},
                       {"prompts", work.num_prompts},
                       {"prompt_tokens", work.prompt_tokens},
                       {"new_tokens", work.new_tokens},
                       {"points", points}});
}

}  // namespace

void add_bench_generate_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = bench.add_subcommand(
      "generate", "A batch of long answers from the first request to the last token");
  add_bench_options(*command, options->bench);
  command->add_option("--prompts", options->workload.num_prompts, "Requests, all at once")
      ->check(CLI::Range(1, kMaxWaitingRequests))
      ->capture_default_str();
  command
      ->add_option("--prompt-tokens", options->workload.prompt_tokens, "Random tokens of a prompt")
      ->check(CLI::Range(1, kMaxContext))
      ->capture_default_str();
  command
      ->add_option("--new-tokens", options->workload.new_tokens,
                   "Tokens of an answer; nothing else ends it")
      ->check(CLI::Range(1, kMaxContext))
      ->capture_default_str();
  command->add_option("--seed", options->workload.seed, "Of the prompts' tokens")
      ->capture_default_str();
  command->add_option("--depths", options->depths, "Steps in flight, one run each")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxDepth))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Of all depths, in turns")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options] { return report(run_generate_command(*options)); };
  });
}

}  // namespace gapless
