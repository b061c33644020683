// gapless info: what a model is made of and what a decode step of it must move. Opens no
// device.
#include <cstdio>
#include <memory>
#include <string>

#include "base/limits.h"
#include "commands.h"
#include "engine_options.h"
#include "kernels/compute.h"
#include "memory_options.h"
#include "model/model_source.h"
#include "model/model_summary.h"
#include "model/weight_format.h"
#include "model_option.h"

namespace gapless {
namespace {

struct InfoOptions {
  ModelOption model;
  WeightFormat weights = WeightFormat::kNative;
  KvFormat kv_cache = KvFormat::kNative;
  Compute compute = Compute::kAuto;
  int rows = 1;
  int context = 1000;
};

int print_info(const InfoOptions& options) {
  const StatusOr<ModelSource> source = find_chosen_model(options.model);
  if (!source.ok()) return report(source.status());
  const StatusOr<std::string> files = describe_source(*source);
  if (!files.ok()) return report(files.status());
  const auto describe = [&](const auto& config) {
    return describe_model(config, prepared_format(options.weights), options.kv_cache, options.rows,
                          options.context);
  };
  const std::string text =
      *files + (source->llama ? describe(*source->llama) : describe(source->config));
  const StatusOr<ComputeChoice> compute = choose_cpu_compute(options.compute, this_processor());
  if (!compute.ok()) return report(compute.status());
  std::fputs((text + "on the CPU: " + compute->description + "\n").c_str(), stdout);
  return 0;
}

}  // namespace

void add_info_command(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("info", "Print a model's configuration, sizes, and bytes per decode step");
  auto options = std::make_shared<InfoOptions>();
  add_model_option(*command, options->model);
  add_weights_option(*command, options->weights);
  add_kv_cache_option(*command, options->kv_cache);
  add_compute_option(*command, options->compute);
  command->add_option("--rows", options->rows, "Sequences in the decode step")
      ->check(CLI::Range(1, kMaxSeats))
      ->capture_default_str();
  command->add_option("--context", options->context, "Cached tokens of each sequence")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = [options] { return print_info(*options); }; });
}

}  // namespace gapless
