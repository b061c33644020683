#include "bench_short_answers.h"

#include <array>
#include <boost/json/array.hpp>
#include <cstdio>
#include <memory>

#include "engine_options.h"
#include "measure/depth_comparison.h"
#include "pipeline/loop.h"

namespace gapless {
namespace {

constexpr std::array kDepths{1, 2};
constexpr int kMaxShortAnswerSteps = 1 << 15;

}  // namespace

Status run_short_answers(const ShortAnswersOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                           load_bench_model(options.bench));
  GAPLESS_ASSIGN_OR_RETURN(const ResultHeader header, result_header(options.bench, *model));
  GAPLESS_ASSIGN_OR_RETURN(Workload workload, named_workload("short", options.workload));
  GAPLESS_ASSIGN_OR_RETURN(const PromptSource prompts,
                           PromptSource::create(*model->device, model->model->info(),
                                                spatial_tokens(*model), std::move(workload)));
  RealHostClock clock;
  LoopOptions loop_options;
  loop_options.depth = kDepths.back();
  loop_options.foresees_limits = false;
  loop_options.ledger_capacity = kMaxShortAnswerSteps;
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Loop> loop,
                           Loop::create(*model->device, *model->model, clock, loop_options));
  std::vector<DepthRun> runs;
  for (const int streams : options.streams) {
    const int max_seats = model->model->limits().max_seats;
    if (streams > max_seats) {
      std::fprintf(stderr, "%d streams: this model has %d seats on this device; left out\n",
                   streams, max_seats);
      continue;
    }
    ClosedLoopOptions window;
    window.num_streams = streams;
    window.warm_up_ns = static_cast<std::int64_t>(options.warm_up_seconds * 1e9);
    window.window_ns = static_cast<std::int64_t>(options.seconds * 1e9);
    window.max_window_steps = kMaxShortAnswerSteps;
    GAPLESS_ASSIGN_OR_RETURN(
        const std::vector<DepthRun> both,
        compare_depths(*loop, clock, prompts, window, kDepths, options.repeats));
    runs.insert(runs.end(), both.begin(), both.end());
  }
  fmt::print("{} on {}: answers of {} tokens whose ends come unforeseen\n\n{}", header.model,
             header.device, prompts.workload().mean_tokens, depth_table(runs));
  if (options.bench.json.empty()) return ok_status();
  return write_result(options.bench.json, header,
                      {{"benchmark", "short-answers"},
                       {"measures", "tokens over the host's clock, whole windows, fills included"},
                       {"gain", "of the medians, over depth 1"},
                       {"repeats", options.repeats},
                       {"seconds_per_repeat", options.seconds},
                       {"runs", to_json(runs)}});
}

}  // namespace gapless
