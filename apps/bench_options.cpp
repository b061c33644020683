#include "bench_options.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "engine_options.h"
#include "memory_options.h"
#include "model/load_source.h"

namespace gapless {

void add_result_options(CLI::App& command, std::string& json, std::string& commit) {
  command.add_option("--json", json, "File to write the result to");
  command.add_option("--commit", commit, "Commit to note in the result, where git cannot be asked");
}

void add_bench_options(CLI::App& command, BenchOptions& options) {
  add_model_option(command, options.model);
  command
      .add_option("--device", options.device,
                  "cpu, cuda, cuda:N, or auto: the first GPU where there is one")
      ->capture_default_str();
  add_weights_option(command, options.weights);
  add_kv_cache_option(command, options.kv_cache);
  add_compute_option(command, options.compute);
  add_kv_cache_size_option(command, options.kv_cache_gb);
  add_max_context_option(command, options.max_context);
  add_result_options(command, options.json, options.commit);
  command
      .add_option("--peak-bandwidth", options.peak_bandwidth_tb_s,
                  "The device's read bandwidth in TB/s, the ceiling of a decode step")
      ->check(CLI::NonNegativeNumber);
}

void add_workload_options(CLI::App& command, Workload& workload) {
  command
      .add_option("--context", workload.context,
                  "Cached tokens of a sequence in the middle of its answer")
      ->check(CLI::Range(1, kMaxContext))
      ->capture_default_str();
  command.add_option("--tokens", workload.mean_tokens, "Mean length of an answer")
      ->check(CLI::Range(1.0, double{kMaxContext}))
      ->capture_default_str();
  command.add_flag("!--fixed-lengths", workload.random_lengths,
                   "All answers have the same length; otherwise half to one and a half times it");
  command.add_flag(
      "!--no-image", workload.image,
      "Prompts of text alone, computed anew for each answer; otherwise they begin with "
      "an image prefix, which is cached");
  command.add_flag(
      "--shared-image", workload.shared_image,
      "All streams ask about one picture, so that their rows read the same pages of its "
      "prefix; otherwise each has its own");
  command.add_flag(
      "--random-tokens", workload.random_tokens,
      "Tokens of prompts and answers are drawn evenly from the vocabulary, each row's apart, so "
      "that rows choose experts of their own; otherwise answers are greedy");
  command.add_option("--seed", workload.seed, "Of the answers' lengths")->capture_default_str();
}

void ask_for_rows(BenchOptions& options, const std::vector<int>& rows) {
  const int most = *std::max_element(rows.begin(), rows.end());
  if (most > kDefaultSeats) options.max_rows = most;
}

StatusOr<std::unique_ptr<LoadedModel>> load_bench_model(const BenchOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_chosen_device(options.device));
  GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_chosen_model(options.model));
  return load_model(std::move(device), source,
                    {.weights = options.weights,
                     .kv_cache = options.kv_cache,
                     .compute = options.compute,
                     .kv_cache_bytes = kv_cache_bytes(options.kv_cache_gb),
                     .kv_cache_sized_to_machine = true,
                     .max_rows = options.max_rows,
                     .max_context = options.max_context,
                     .adjust_limits = nullptr});
}

StatusOr<ResultHeader> result_header(const BenchOptions& options, LoadedModel& model) {
  GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, model.device->info());
  ResultHeader header;
  header.commit = options.commit;
  header.device = info.name;
  header.model = options.model.name.empty() ? "models/tiny" : options.model.name;
  header.ceiling = options.peak_bandwidth_tb_s > 0
                       ? fmt::format("read bandwidth {} TB/s", options.peak_bandwidth_tb_s)
                       : "none";
  return header;
}

Status use_cores(int count) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return make_error(StatusCode::kInternal, "sched_getaffinity: {}", std::strerror(errno));
  }
  int kept = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (kept < count) {
      ++kept;
    } else {
      CPU_CLR(core, &allowed);
    }
  }
  if (kept < count) return invalid_argument("{} cores: this process may use {}", count, kept);
  if (sched_setaffinity(0, sizeof(allowed), &allowed) != 0) {
    return make_error(StatusCode::kInternal, "sched_setaffinity: {}", std::strerror(errno));
  }
  return ok_status();
}

Status expect_pictures(const LoadedModel& model) {
  if (model.vision_language_model() != nullptr) return ok_status();
  return invalid_argument("{} is a text model; this measures models that take pictures",
                          model.name);
}

SpatialTokens spatial_tokens(const LoadedModel& model) {
  const TokenizerConfig& tokens = model.prompts.config();
  return {.coord_id = tokens.coord_id.value,
          .size_id = tokens.size_id.value,
          .eos_id = tokens.eos_id.value,
          .any_token_is_coord = tokens.any_token_is_coord};
}

}  // namespace gapless
