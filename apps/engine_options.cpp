#include "engine_options.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "base/limits.h"
#include "model/load_source.h"
#include "observe/trace.h"
#include "sim/faulty_device.h"

namespace gapless {

namespace {

const std::map<std::string, WeightFormat> kWeightFormats = {
    {"native", WeightFormat::kNative}, {"fp8", WeightFormat::kFp8}, {"w8a8", WeightFormat::kW8A8}};
const std::map<std::string, KvFormat> kKvFormats = {{"native", KvFormat::kNative},
                                                    {"fp8", KvFormat::kFp8}};

}  // namespace

void add_weights_option(CLI::App& command, WeightFormat& weights) {
  command
      .add_option(
          "--weights", weights,
          "native; fp8: matrices in 8 bits with a scale per row, made at start-up; or w8a8: "
          "the same, and products in 8 bits in the vision encoder and in prefills")
      ->transform(CLI::CheckedTransformer(kWeightFormats));
}

void add_kv_cache_option(CLI::App& command, KvFormat& format) {
  command
      .add_option(
          "--kv-cache", format,
          "native, or fp8: keys and values in 8 bits, so that twice as many fit (four times "
          "on the CPU)")
      ->transform(CLI::CheckedTransformer(kKvFormats));
}

std::vector<std::string> format_arguments(WeightFormat weights, KvFormat kv_cache) {
  std::vector<std::string> arguments;
  for (const auto& [name, format] : kWeightFormats) {
    if (format == weights) arguments.insert(arguments.end(), {"--weights", name});
  }
  for (const auto& [name, format] : kKvFormats) {
    if (format == kv_cache) arguments.insert(arguments.end(), {"--kv-cache", name});
  }
  return arguments;
}

void add_engine_options(CLI::App& command, EngineCommandOptions& options) {
  add_model_option(command, options.model);
  command
      .add_option("--device", options.device,
                  "cpu, cuda, cuda:N, or auto: the first GPU where there is one")
      ->capture_default_str();
  add_weights_option(command, options.weights);
  add_kv_cache_option(command, options.kv_cache);
  command.add_option("--depth", options.depth, "Steps in flight: 1 is the blocking loop")
      ->check(CLI::Range(1, kMaxDepth))
      ->capture_default_str();
  command
      .add_option("--step-timeout", options.step_timeout_s,
                  fmt::format("Seconds after which a step of the device counts as hung, and the "
                              "device as lost; 0: never. Default: {} on a GPU, {} on the CPU",
                              kStepTimeoutSeconds, kCpuStepTimeoutSeconds))
      ->check(CLI::Range(0.0, 86'400.0));
  command
      .add_option(
          "--picture-memory-mb", options.picture_memory_mb,
          "Memory in MiB for all pictures that are being decoded; a picture that takes more "
          "is refused")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
}

void add_trace_option(CLI::App& command, EngineCommandOptions& options) {
  command.add_option("--trace", options.trace,
                     "Write a Chrome trace of the last steps (open it in ui.perfetto.dev)");
}

namespace {

StatusOr<std::unique_ptr<Device>> open_named_device(const std::string& name) {
  if (name != "auto") return open_device(name);
  StatusOr<std::unique_ptr<Device>> cuda = open_device("cuda");
  return cuda.ok() ? std::move(cuda) : open_device("cpu");
}

// On a CPU, where their encode is what pictures wait for: ten of a camera, with ten crops each, 48 MB.
// More that wait would not be answered sooner.
constexpr int kCpuStagedCrops = 112;

std::int64_t step_timeout_ns(const EngineCommandOptions& options, DeviceKind kind) {
  const double usual = kind == DeviceKind::kCpu ? kCpuStepTimeoutSeconds : kStepTimeoutSeconds;
  return static_cast<std::int64_t>(options.step_timeout_s.value_or(usual) * 1e9);
}

}  // namespace

StatusOr<std::unique_ptr<Device>> open_chosen_device(const std::string& name) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_named_device(name));
  // For tests of the whole program (tests/faults).
  const char* const fault = std::getenv("GAPLESS_TEST_FAULT");
  if (fault == nullptr) return device;
  GAPLESS_ASSIGN_OR_RETURN(const DeviceFault parsed, parse_device_fault(fault));
  return make_faulty_device(std::move(device), parsed);
}

StatusOr<std::unique_ptr<Engine>> start_engine(const EngineCommandOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_chosen_device(options.device));
  GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_chosen_model(options.model));
  GAPLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<LoadedModel> model,
      load_model(
          std::move(device), source,
          {.weights = options.weights, .kv_cache = options.kv_cache, .adjust_limits = nullptr}));
  EngineOptions engine_options;
  engine_options.loop.depth = options.depth;
  engine_options.loop.step_timeout_ns = step_timeout_ns(options, model->device->kind());
  engine_options.loop.on_device_lost = options.on_device_lost;
  if (model->device->kind() == DeviceKind::kCpu) {
    engine_options.num_staged_crops = kCpuStagedCrops;
  }
  engine_options.picture_memory_bytes = options.picture_memory_mb << 20;
  engine_options.max_active_requests = options.max_active_requests;
  return Engine::start(std::move(model), engine_options);
}

Status write_trace(const EngineCommandOptions& options, Engine& engine) {
  if (options.trace.empty()) return ok_status();
  return write_chrome_trace(engine.loop().ledger(), options.trace);
}

int report(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "gapless: %s\n", status.to_string().c_str());
  return status.code() == StatusCode::kDeviceError ? kExitDeviceError : 1;
}

}  // namespace gapless
