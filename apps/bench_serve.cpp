// gapless bench serve: clients by the hundred against a server, over HTTP, in closed or open loop.
#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "bench_options.h"
#include "engine_options.h"
#include "load/depth_gain.h"
#include "load/load_client.h"
#include "load/load_summary.h"
#include "load/load_target.h"
#include "load/pictures.h"
#include "load/server_process.h"
#include "memory_options.h"

namespace gapless {
namespace {

struct ServeBenchOptions {
  std::string url;  // empty: a server of our own
  std::string model;
  std::string device = "auto";
  WeightFormat weights = WeightFormat::kNative;
  KvFormat kv_cache = KvFormat::kNative;
  std::vector<int> depths{2};
  int max_requests_of_server = 1024;
  int cores = 0;  // 0: all

  std::string api = "moondream";
  LoadWorkload workload{.text = "How many circles are there?"};
  bool natural_ends = false;
  std::vector<int> max_tokens{3, 30};
  std::vector<int> concurrency{1, 4, 16, 64};
  std::vector<double> rates;
  std::vector<std::string> images;
  int num_distinct_images = 8;
  std::vector<std::string> image_sizes{"800x600"};
  std::string image_format = "jpeg";

  LoadOptions load{.warm_up_s = 2};
  int repeats = 1;
  bool check_answers = false;
  double soak_minutes = 0;
  std::string json, commit, note;
};

Status read_pictures(ServeBenchOptions& options) {
  std::vector<std::string>& pictures = options.workload.pictures;
  for (const std::string& path : options.images) {
    GAPLESS_ASSIGN_OR_RETURN(std::string picture, read_file(path, kMaxImageBytes));
    pictures.push_back(std::move(picture));
  }
  if (!pictures.empty() || options.num_distinct_images == 0) return ok_status();
  std::vector<PictureSize> sizes;
  for (const std::string& text : options.image_sizes) {
    GAPLESS_ASSIGN_OR_RETURN(const PictureSize size, parse_picture_size(text));
    sizes.push_back(size);
  }
  GAPLESS_ASSIGN_OR_RETURN(const PictureFormat format, parse_picture_format(options.image_format));
  GAPLESS_ASSIGN_OR_RETURN(
      pictures, make_pictures(options.num_distinct_images, sizes, options.load.seed, format));
  return ok_status();
}

// Servers of one depth after another, and their points.
class ServeBench {
 public:
  explicit ServeBench(ServeBenchOptions options) : options_(std::move(options)) {}

  Status run() {
    if (options_.cores > 0) GAPLESS_RETURN_IF_ERROR(use_cores(options_.cores));
    GAPLESS_RETURN_IF_ERROR(read_pictures(options_));
    // Depths take turns, so that a drift of the machine does not look like a difference between
    // them.
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const int depth : options_.depths) GAPLESS_RETURN_IF_ERROR(run_server(depth, repeat));
    }
    const std::vector<DepthGain> gains = depth_gains(points_);
    fmt::print("{}", depth_gain_table(gains));
    if (!options_.json.empty()) GAPLESS_RETURN_IF_ERROR(write(gains));
    if (num_errors_ == 0) return ok_status();
    return make_error(StatusCode::kInternal, "{} requests failed; the first: {}", num_errors_,
                      first_error_);
  }

 private:
  Status run_server(int depth, int repeat) {
    GAPLESS_RETURN_IF_ERROR(find_server(depth));
    fmt::print("{} {} of {} on {}, {} distinct requests", options_.api, options_.workload.skill,
               url_text_, device_, std::max<std::size_t>(1, options_.workload.pictures.size()));
    if (server_) fmt::print(", depth {}", depth);
    fmt::print("\n{}", load_table_header());
    for (const int max_tokens : options_.max_tokens) {
      options_.workload.max_tokens = max_tokens;
      GAPLESS_ASSIGN_OR_RETURN(const LoadRequests requests,
                               make_load_requests(url_, options_.workload));
      GAPLESS_RETURN_IF_ERROR(measure_all(requests, depth, repeat));
    }
    if (server_) GAPLESS_RETURN_IF_ERROR(server_->stop());
    server_.reset();
    return ok_status();
  }

  Status find_server(int depth) {
    url_text_ = options_.url;
    if (url_text_.empty()) {
      std::vector<std::string> arguments{
          "--device",       options_.device,
          "--depth",        std::to_string(depth),
          "--max-requests", std::to_string(options_.max_requests_of_server)};
      if (!options_.model.empty()) arguments.insert(arguments.end(), {"--model", options_.model});
      const std::vector<std::string> formats =
          format_arguments(options_.weights, options_.kv_cache);
      arguments.insert(arguments.end(), formats.begin(), formats.end());
      GAPLESS_ASSIGN_OR_RETURN(server_, ServerProcess::start(std::move(arguments)));
      url_text_ = server_->url();
    }
    GAPLESS_ASSIGN_OR_RETURN(url_, parse_server_url(url_text_));
    device_ = gauges().device();
    if (device_.empty()) device_ = "unknown";
    return ok_status();
  }

  // Of a server without /metrics: nothing.
  ServerGauges gauges() const {
    const auto text = http_get(url_, "/metrics", options_.workload.api_key);
    return text.ok() ? parse_server_gauges(*text) : ServerGauges();
  }

  Status measure_all(const LoadRequests& requests, int depth, int repeat) {
    LoadOptions load = options_.load;
    if (options_.check_answers) {
      GAPLESS_ASSIGN_OR_RETURN(load.expected_answers, ask_alone(url_, requests));
    }
    for (const double rate : options_.rates) {
      load.rate = rate;
      GAPLESS_RETURN_IF_ERROR(measure(requests, load, depth, repeat));
    }
    if (!options_.rates.empty()) return ok_status();
    for (const int concurrency : options_.concurrency) {
      load.concurrency = concurrency;
      GAPLESS_RETURN_IF_ERROR(measure(requests, load, depth, repeat));
    }
    return ok_status();
  }

  Status measure(const LoadRequests& requests, const LoadOptions& load, int depth, int repeat) {
    ServerGauges before;
    LoadOptions measured = load;
    measured.first_request = next_request_;
    measured.window_begins = [&] { before = gauges(); };
    GAPLESS_ASSIGN_OR_RETURN(LoadRun run, run_load(url_, requests, measured));
    next_request_ += run.num_sent;
    const ServerGauges after = gauges();
    LoadSummary summary = summarise_load(std::move(run));
    summary.concurrency = load.concurrency;
    summary.rate = load.rate;
    summary.max_tokens = options_.workload.max_tokens;
    add_server_figures(before, after, summary);
    if (server_) {
      summary.rss_peak_mb = server_->peak_resident_bytes();
      if (summary.rss_peak_mb) *summary.rss_peak_mb /= 1e6;
    }
    num_errors_ += summary.run.num_errors();
    if (first_error_.empty()) first_error_ = summary.run.first_error;
    print(summary);
    points_.push_back({depth, repeat, std::move(summary)});
    return ok_status();
  }

  void print(const LoadSummary& summary) const {
    fmt::print("{}", load_table_row(summary));
    if (summary.concurrency == 1) fmt::print("{}", stage_table(summary));
    if (options_.load.abandon_share > 0 || options_.check_answers) {
      fmt::print(
          "        {} abandoned, {} wrong answers, {} at once; resident {:.1f} -> {:.1f} MB\n",
          summary.run.count(LoadOutcome::kAbandoned), summary.run.count(LoadOutcome::kWrongAnswer),
          summary.run.max_in_flight, summary.rss_begin_mb.value_or(0),
          summary.rss_end_mb.value_or(0));
    }
    std::fflush(stdout);
  }

  boost::json::array points_json() const {
    boost::json::array list;
    for (const DepthPoint& point : points_) {
      boost::json::object entry = load_json(point.summary);
      if (options_.url.empty()) entry["depth"] = point.depth;
      if (options_.repeats > 1) entry["repeat"] = point.repeat;
      list.push_back(std::move(entry));
    }
    return list;
  }

  Status write(const std::vector<DepthGain>& gains) const {
    ResultHeader header;
    header.commit = options_.commit;
    header.device =
        options_.cores > 0 ? fmt::format("{}, {} cores", device_, options_.cores) : device_;
    header.model = options_.model.empty() ? "models/tiny" : options_.model;
    if (!options_.url.empty()) header.model = options_.workload.model;
    header.ceiling = "none";
    boost::json::array sizes;
    for (const std::string& size : options_.image_sizes) sizes.emplace_back(size);
    const bool generated = options_.images.empty() && options_.num_distinct_images > 0;
    return write_result(options_.json, header,
                        {{"benchmark", "serve"},
                         {"spread", "p50, p90 and p99 of the requests"},
                         {"note", options_.note},
                         {"api", options_.api},
                         {"skill", options_.workload.skill},
                         {"distinct_images", options_.workload.pictures.size()},
                         {"image_sizes", generated ? sizes : boost::json::array()},
                         {"image_format", generated ? options_.image_format : "as given"},
                         {"ends", options_.natural_ends ? "stop tokens" : "max_tokens"},
                         {"answers_checked", options_.check_answers},
                         {"abandon_share", options_.load.abandon_share},
                         {"warm_up_s", options_.load.warm_up_s},
                         {"repeats", options_.repeats},
                         {"points", points_json()},
                         {"gains", depth_gain_json(gains)}});
  }

  ServeBenchOptions options_;
  std::unique_ptr<ServerProcess> server_;
  std::string url_text_;
  ServerUrl url_;
  std::string device_;
  std::vector<DepthPoint> points_;
  std::int64_t num_errors_ = 0;
  std::int64_t next_request_ = 0;
  std::string first_error_;
};

Status run_serve_bench(ServeBenchOptions options) {
  if (!options.url.empty() && options.depths.size() > 1) {
    return invalid_argument("--depth: a server that runs already has the depth that it has");
  }
  options.workload.api = options.api == "openai" ? LoadApi::kOpenai : LoadApi::kMoondream;
  options.workload.ignore_eos = !options.natural_ends;
  if (options.soak_minutes > 0) {
    options.load.duration_s = 60 * options.soak_minutes;
    options.load.abandon_share = 0.1;
    options.check_answers = true;
  }
  return ServeBench(std::move(options)).run();
}

void add_server_options(CLI::App& command, ServeBenchOptions& options) {
  command.add_option("--url", options.url,
                     "A server that runs already, such as http://127.0.0.1:2020; without this "
                     "`gapless serve` is started on a free port, with the next six");
  command.add_option("--model", options.model,
                     "Folder or file of published weights, or nothing: the model that ships");
  command.add_option("--device", options.device, "cpu, cuda, cuda:N, or auto")
      ->capture_default_str();
  add_weights_option(command, options.weights);
  add_kv_cache_option(command, options.kv_cache);
  command
      .add_option("--depth", options.depths,
                  "Steps in flight of the started server; several: servers in turn, compared with "
                  "depth 1")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxDepth))
      ->capture_default_str();
  command
      .add_option("--max-requests", options.max_requests_of_server,
                  "Requests that the started server lets run or wait")
      ->capture_default_str();
  command.add_option("--cores", options.cores,
                     "Processor cores for the started server and the clients together; 0: all");
  command.add_option("--api", options.api, "moondream or openai")
      ->check(CLI::IsMember({"moondream", "openai"}))
      ->capture_default_str();
  command.add_option("--served-model", options.workload.model, "The model to name in requests");
  command.add_option("--api-key", options.workload.api_key, "Sent as Authorization: Bearer");
}

void add_request_options(CLI::App& command, ServeBenchOptions& options) {
  command.add_option("--skill", options.workload.skill, "query, caption, point or detect")
      ->capture_default_str();
  command.add_option("--text", options.workload.text, "The question, or the object")
      ->capture_default_str();
  command
      .add_option("--max-tokens", options.max_tokens,
                  "Tokens of an answer, one point for each; 3 is a direct answer")
      ->delimiter(',')
      ->capture_default_str();
  command.add_flag("--natural-ends", options.natural_ends,
                   "Answers may end before --max-tokens (ignore_eos is not sent)");
  command.add_option("--temperature", options.workload.temperature, "0 is greedy")
      ->capture_default_str();
  command.add_option("--image", options.images, "Pictures to send (repeatable)");
  command
      .add_option("--distinct-images", options.num_distinct_images,
                  "Without --image: pictures to make; 0: text alone")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  command.add_option("--image-size", options.image_sizes, "Of made pictures; several take turns")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--image-format", options.image_format,
                  "Of made pictures: jpeg (grain as of a photograph) or png (flat areas)")
      ->check(CLI::IsMember({"jpeg", "png"}))
      ->capture_default_str();
}

void add_load_options(CLI::App& command, ServeBenchOptions& options) {
  LoadOptions& load = options.load;
  command
      .add_option("--concurrency", options.concurrency,
                  "Closed loop: clients that ask again at once, one point for each number")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--rate", options.rates,
                  "Open loop instead: requests per second, as a Poisson process")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command.add_option("--seed", load.seed, "Of arrivals, pictures and departures")
      ->capture_default_str();
  command.add_option("--duration", load.duration_s, "Seconds per point")->capture_default_str();
  command
      .add_option("--repeats", options.repeats, "Go through all depths so many times, one by one")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_option("--requests", load.max_requests,
                     "Requests per point, if they are sent before --duration; 0: any number");
  command
      .add_option(
          "--warm-up", load.warm_up_s,
          "Seconds of each point's load before it is measured; it goes on into the measurement")
      ->capture_default_str();
  command.add_option("--timeout", load.request_timeout_s, "Seconds for one answer")
      ->capture_default_str();
  command.add_flag("--check-answers", options.check_answers,
                   "Ask for each answer alone first, and compare every later one with it");
  command
      .add_option("--abandon", load.abandon_share,
                  "Share of the clients that go away before their answer's end")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--soak", options.soak_minutes,
                     "Minutes: --duration so long, --abandon 0.1, --check-answers");
  add_result_options(command, options.json, options.commit);
  command.add_option("--note", options.note, "To keep with the result");
}

}  // namespace

void add_bench_serve_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<ServeBenchOptions>();
  CLI::App* command = bench.add_subcommand(
      "serve", "Throughput and latencies of a server, as its clients see them");
  add_server_options(*command, *options);
  add_request_options(*command, *options);
  add_load_options(*command, *options);
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_serve_bench(*options)); }; });
}

}  // namespace gapless
