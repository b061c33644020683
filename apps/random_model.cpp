// gapless random-model: writes a checkpoint of seeded random weights in the published naming.
#include "model/random_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "commands.h"
#include "engine_options.h"
#include "model/model_source.h"
#include "progress.h"

namespace gapless {
namespace {

struct RandomModelOptions {
  std::string architecture = "moondream2";
  std::uint64_t seed = 0;
  std::string folder;
};

int write_model(const RandomModelOptions& options) {
  const StatusOr<ModelSource> source =
      find_model(fmt::format("random:{}:{}", options.architecture, options.seed));
  if (!source.ok()) return report(source.status());
  std::optional<Progress> progress;
  const auto show = [&progress](std::int64_t done_bytes, std::int64_t total_bytes) {
    constexpr std::int64_t kMegabyte = 1'000'000;
    if (!progress) progress.emplace("MB written", total_bytes / kMegabyte);
    progress->update(done_bytes / kMegabyte);
  };
  const Status status = write_random_model(*source, options.folder, show);
  if (progress) progress->clear();
  return report(status);
}

}  // namespace

void add_random_model_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand(
      "random-model", "Write a model of the full shape with random weights, for benchmarks");
  auto options = std::make_shared<RandomModelOptions>();
  command
      ->add_option(
          "--arch", options->architecture,
          "moondream2, moondream2-march, moondream2-january, moondream-0.5b, moondream3, "
          "moondream2-march-small, moondream-0.5b-small, moondream3-small, llama3-8b, llama3-1b, "
          "qwen3-8b or qwen3-1.7b")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "The same seed gives the same weights")
      ->capture_default_str();
  command
      ->add_option("--out", options->folder, "Folder to write model.safetensors and config.json to")
      ->required();
  command->callback([options, &chosen] { chosen = [options] { return write_model(*options); }; });
}

}  // namespace gapless
