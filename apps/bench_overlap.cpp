// gapless bench overlap: what pipelining gains over the blocking loop. Runs that differ in their
// depth alone take turns; those of depth 1 predict what the others show.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/limits.h"
#include "bench_options.h"
#include "bench_short_answers.h"
#include "constraint/token_grammar.h"
#include "engine_options.h"
#include "measure/gain_plot.h"
#include "measure/measured_run.h"
#include "measure/overlap_report.h"
#include "measure/timeline_svg.h"
#include "observe/trace.h"

namespace gapless {
namespace {

constexpr int kMaxWindowSteps = 1 << 14;
constexpr int kTimelineSteps = 6;
// Of one grammar, each under a name of its own: by the time a copy's turn comes again, the answers under the others have
// filled the cache of masks several times over.
constexpr int kGrammarCopies = 128;

struct OverlapOptions {
  BenchOptions bench;
  Workload workload;
  std::vector<std::string> workloads{"plain"};
  std::vector<int> streams{1, 8, 32};
  std::vector<int> depths{1, 2, 3};
  std::vector<double> host_delays_us{0};
  double seconds = 2;
  double warm_up_seconds = 0.3;
  int repeats = 5;
  bool short_answers = false;
  std::string wait = "nap";
  std::string plot;  // SVG files; empty: none
  std::string timeline;
  std::string trace;  // Chrome trace of the last window
};

// Runs what the options ask for. Every repeat goes through all depths, so that a slow drift of the
// machine does not look like a difference between them.
class OverlapBenchmark {
 public:
  OverlapBenchmark(const OverlapOptions& options, LoadedModel& model)
      : options_(options), model_(model) {}

  Status run() {
    GAPLESS_RETURN_IF_ERROR(make_sources());
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const double delay_us : options_.host_delays_us) {
        for (const int depth : options_.depths) {
          GAPLESS_RETURN_IF_ERROR(run_loop(repeat, delay_us, depth));
        }
      }
    }
    return ok_status();
  }

  const std::vector<TimelineSample>& timelines() const { return timelines_; }

  // In the order of workloads, delays, streams, depths.
  std::vector<MeasuredRun> sorted_runs() const {
    std::vector<MeasuredRun> runs = runs_;
    const auto rank = [&](const MeasuredRun& run) {
      const auto found =
          std::find(options_.workloads.begin(), options_.workloads.end(), run.workload);
      return std::make_tuple(found, run.host_delay_us, run.num_streams, run.depth);
    };
    std::stable_sort(runs.begin(), runs.end(),
                     [&](const MeasuredRun& a, const MeasuredRun& b) { return rank(a) < rank(b); });
    return runs;
  }

 private:
  Status make_sources() {
    for (const std::string& name : options_.workloads) {
      GAPLESS_ASSIGN_OR_RETURN(Workload workload, named_workload(name, options_.workload));
      GAPLESS_ASSIGN_OR_RETURN(const WorkloadGrammar grammar, grammar_of(workload));
      GAPLESS_ASSIGN_OR_RETURN(
          PromptSource source,
          PromptSource::create(*model_.device, model_.model->info(), spatial_tokens(model_),
                               std::move(workload), grammar));
      sources_.push_back(std::move(source));
    }
    const int max_seats = model_.model->limits().max_seats;
    for (const int streams : options_.streams) {
      if (streams <= max_seats) {
        streams_.push_back(streams);
      } else {
        std::fprintf(stderr, "%d streams: this model has %d seats on this device; left out\n",
                     streams, max_seats);
      }
    }
    return ok_status();
  }

  // Of a workload that has one.
  StatusOr<WorkloadGrammar> grammar_of(const Workload& workload) {
    WorkloadGrammar grammar;
    if (workload.constraint != RowConstraint::kGrammar &&
        workload.constraint != RowConstraint::kHostGrammar) {
      return grammar;
    }
    if (grammars_ == nullptr) {
      grammars_ = std::make_shared<GrammarStore>(model_.tokenizer.text_of_tokens(),
                                                 model_.prompts.config().eos_id.value);
    }
    GAPLESS_ASSIGN_OR_RETURN(const std::shared_ptr<TokenGrammar> compiled,
                             grammars_->get({.kind = GrammarSpec::Kind::kJsonSchema,
                                             .text = std::string(kWorkloadSchema)}));
    grammar.on_host = [store = grammars_, compiled] { return store->constraint(compiled); };
    DeviceGrammars* const device_grammars = model_.model->grammars();
    if (device_grammars == nullptr || !compiled->fits_device()) return grammar;
    std::vector<std::shared_ptr<const DeviceGrammar>> copies;
    for (int i = 0; i < (workload.new_grammars ? kGrammarCopies : 1); ++i) {
      const std::shared_ptr<const void> owner = std::make_shared<int>(i);
      GAPLESS_ASSIGN_OR_RETURN(std::shared_ptr<const DeviceGrammar> copy,
                               device_grammars->hold(owner, compiled->grammar()));
      if (copy == nullptr)
        return make_error(StatusCode::kResourceExhausted, "{} grammars have no room on the device",
                          i + 1);
      copies.push_back(std::move(copy));
    }
    grammar.on_device = [copies = std::move(copies), next = std::size_t{0}]() mutable {
      return copies[next++ % copies.size()];
    };
    return grammar;
  }

  StatusOr<std::int64_t> count_found_masks() {
    DeviceGrammars* const grammars = model_.model->grammars();
    return grammars == nullptr ? std::int64_t{0} : grammars->count_found_masks();
  }

  Status run_loop(int repeat, double delay_us, int depth) {
    LoopOptions loop_options;
    loop_options.depth = depth;
    loop_options.host_delay_ns = static_cast<std::int64_t>(delay_us * 1e3);
    loop_options.foresees_limits = false;
    loop_options.naps = options_.wait == "nap";
    loop_options.ledger_capacity = kMaxWindowSteps;
    GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Loop> loop,
                             Loop::create(*model_.device, *model_.model, clock_, loop_options));
    // Workloads are compared with each other at the same number of streams, so they follow each other there.
    for (const int streams : streams_) {
      for (const PromptSource& source : sources_) {
        std::fprintf(stderr, "\rrepeat %d, delay %.0f us, depth %d, %s, %d streams        ",
                     repeat + 1, delay_us, depth, source.workload().name.c_str(), streams);
        GAPLESS_ASSIGN_OR_RETURN(const std::int64_t found_before, count_found_masks());
        GAPLESS_ASSIGN_OR_RETURN(const ClosedLoopWindow window,
                                 run_closed_loop(*loop, clock_, source, window_of(streams)));
        GAPLESS_ASSIGN_OR_RETURN(const std::int64_t found, count_found_masks());
        MeasuredRun& run = find_run(source.workload().name, delay_us, streams, depth);
        run.add(window);
        run.num_found_masks += found - found_before;
        if (repeat == 0) keep_timeline(window, source.workload().name, delay_us, streams, depth);
      }
    }
    std::fprintf(stderr, "\r%-72s\r", "");
    if (options_.trace.empty()) return ok_status();
    return write_chrome_trace({trace_of(loop->ledger(), "device")}, options_.trace);
  }

  // Of the first workload and delay, with the fewest streams, where steps are shortest and so the
  // gaps between them most visible: one for each depth.
  void keep_timeline(const ClosedLoopWindow& window, const std::string& workload, double delay_us,
                     int streams, int depth) {
    if (workload != options_.workloads.front() || delay_us != options_.host_delays_us.front() ||
        streams != streams_.front()) {
      return;
    }
    const std::string loop = depth == 1 ? "blocking" : fmt::format("pipelined, depth {}", depth);
    timelines_.push_back(
        pick_decode_steps(fmt::format("{} ({}, {} streams)", loop, workload, streams),
                          window.records, window.phases, streams, kTimelineSteps));
  }

  ClosedLoopOptions window_of(int streams) const {
    ClosedLoopOptions options;
    options.num_streams = streams;
    options.warm_up_ns = static_cast<std::int64_t>(options_.warm_up_seconds * 1e9);
    options.window_ns = static_cast<std::int64_t>(options_.seconds * 1e9);
    options.max_window_steps = kMaxWindowSteps;
    return options;
  }

  MeasuredRun& find_run(const std::string& workload, double delay_us, int streams, int depth) {
    for (MeasuredRun& run : runs_) {
      if (run.workload == workload && run.host_delay_us == delay_us && run.num_streams == streams &&
          run.depth == depth) {
        return run;
      }
    }
    runs_.push_back({workload, delay_us, streams, depth});
    return runs_.back();
  }

  const OverlapOptions& options_;
  LoadedModel& model_;
  RealHostClock clock_;
  std::shared_ptr<GrammarStore> grammars_;
  std::vector<PromptSource> sources_;
  std::vector<int> streams_;
  std::vector<MeasuredRun> runs_;
  std::vector<TimelineSample> timelines_;
};

Status run_overlap(OverlapOptions options) {
  if (options.workloads == std::vector<std::string>{"all"}) options.workloads = workload_names();
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                           load_bench_model(options.bench));
  GAPLESS_ASSIGN_OR_RETURN(const ResultHeader header, result_header(options.bench, *model));
  OverlapBenchmark benchmark(options, *model);
  GAPLESS_RETURN_IF_ERROR(benchmark.run());

  const std::vector<MeasuredRun> runs = benchmark.sorted_runs();
  const std::vector<OverlapGain> gains = overlap_gains(runs);
  fmt::print("{} on {}\n\n{}\n{}\n{}{}", header.model, header.device, step_table(runs),
             host_table(runs), gain_table(gains), against_plain_table(runs));
  if (!options.plot.empty()) {
    const std::string title =
        fmt::format("Gain of pipelining: {} on {}", header.model, header.device);
    GAPLESS_RETURN_IF_ERROR(gain_plot(gains, title).write(options.plot));
  }
  if (!options.timeline.empty()) {
    GAPLESS_RETURN_IF_ERROR(timeline_svg(benchmark.timelines()).write(options.timeline));
  }
  if (options.bench.json.empty()) return ok_status();
  return write_result(options.bench.json, header,
                      {{"benchmark", "overlap"},
                       {"spread", "p10 and p90 of the steps; least and most of the repeats"},
                       {"repeats", options.repeats},
                       {"wait", options.wait},
                       {"seconds_per_repeat", options.seconds},
                       {"runs", to_json(runs)},
                       {"against_plain", to_json(periods_against_plain(runs))},
                       {"gains", to_json(gains)}});
}

}  // namespace

void add_bench_overlap_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<OverlapOptions>();
  CLI::App* command = bench.add_subcommand(
      "overlap", "Blocking against pipelined: step times, bubbles, predicted and observed gain");
  add_bench_options(*command, options->bench);
  add_workload_options(*command, options->workload);
  std::vector<std::string> names = workload_names();
  names.emplace_back("all");
  command->add_option("--workload", options->workloads, "What is asked, or all")
      ->delimiter(',')
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  command
      ->add_option_function<std::string>(
          "--constrained",
          [options](const std::string&) {
            options->workloads = {"plain", "json", "json-new", "json-host-mask"};
          },
          "json: plain answers beside the same held to a JSON Schema: on the device with legal "
          "tokens found before, with "
          "new places all the time, and by host masks")
      ->check(CLI::IsMember({"json"}))
      ->excludes("--workload");
  command->add_option("--streams", options->streams, "Clients that always have a request running")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxSeats))
      ->capture_default_str();
  command->add_option("--depths", options->depths, "Steps in flight; 1 is the blocking loop")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxDepth))
      ->capture_default_str();
  command
      ->add_option("--host-delay-us", options->host_delays_us,
                   "Artificial host work in every decode step")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "Measured time per point and repeat")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--warm-up", options->warm_up_seconds, "Seconds before that")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_wait_option(*command, options->wait);
  command->add_option("--repeats", options->repeats, "Each goes through all depths")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--plot", options->plot, "SVG file: predicted against observed gain");
  command->add_option("--timeline", options->timeline,
                      "SVG file: a few steps of each depth, of the first workload");
  command->add_option("--trace", options->trace,
                      "Chrome trace of the last steps of the last depth (ui.perfetto.dev)");
  command->add_flag(
      "--short-answers", options->short_answers,
      "Instead: answers of 3 tokens whose ends come unforeseen, depths 1 and 2, tokens "
      "over the host's clock (takes --streams, --seconds, --warm-up, --repeats)");
  command->callback([options, &chosen] {
    ask_for_rows(options->bench, options->streams);
    chosen = [options] {
      if (!options->short_answers) return report(run_overlap(*options));
      return report(run_short_answers({.bench = options->bench,
                                       .workload = options->workload,
                                       .streams = options->streams,
                                       .seconds = options->seconds,
                                       .warm_up_seconds = options->warm_up_seconds,
                                       .repeats = options->repeats}));
    };
  });
}

}  // namespace gapless
