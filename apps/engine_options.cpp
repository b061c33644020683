#include "engine_options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "device/device_list.h"
#include "device/limited_device.h"
#include "engine/memory_plan.h"
#include "engine_service/engine_service.h"
#include "memory_options.h"
#include "model/load_source.h"
#include "option_values.h"
#include "sim/faulty_device.h"

namespace gapless {

namespace {

const std::map<std::string, Compute> kComputes = {
    {"auto", Compute::kAuto}, {"float32", Compute::kFloat32}, {"bfloat16", Compute::kBFloat16}};

}  // namespace

void add_compute_option(CLI::App& command, Compute& compute) {
  add_choice_option(
      command, "--compute", compute, kComputes,
      "What the CPU computes in: auto (what the processor is fastest in), float32, or "
      "bfloat16, which takes half the memory; a GPU computes in bfloat16");
}

void add_wait_option(CLI::App& command, std::string& wait) {
  command
      .add_option(
          "--wait", wait,
          "How a GPU's thread waits for its steps: spin (awake, a core for each GPU) or nap "
          "(it sleeps through the part of a step that is sure, known from the steps before)")
      ->check(CLI::IsMember({"spin", "nap"}))
      ->capture_default_str();
}

namespace {

void add_numerics_option(CLI::App& command, std::vector<std::string>& numerics) {
  std::string list;
  for (const NumericsOption& option : numerics_options()) {
    for (const NumericsChoice& choice : option.choices) {
      list += fmt::format("{}{}={}", list.empty() ? "" : ", ", option.name, choice.name);
    }
  }
  command
      .add_option(
          "--numerics", numerics,
          "How to compute where public implementations of Moondream 3 differ, any of: " + list)
      ->delimiter(',');
}

// "tau_gelu=erf"
std::vector<std::pair<std::string, std::string>> split_numerics(
    const std::vector<std::string>& numerics) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& one : numerics) {
    const std::size_t equals = std::min(one.find('='), one.size());
    pairs.emplace_back(one.substr(0, equals), one.substr(std::min(equals + 1, one.size())));
  }
  return pairs;
}

}  // namespace

void add_engine_options(CLI::App& command, EngineCommandOptions& options) {
  add_model_option(command, options.model);
  command
      .add_option(
          "--device", options.device,
          "cpu, cuda, cuda:N, or auto: the first GPU where there is one. Several, with commas "
          "between them (cuda:0,cuda:2), or all GPUs (all): an engine on each, and requests "
          "are shared out. cpu,cpu: two engines on the same cores, to try that without a GPU")
      ->capture_default_str();
  add_compute_option(command, options.compute);
  add_memory_options(command, options);
  command
      .add_option("--preprocess-threads", options.preprocess_threads,
                  "Threads that decode pictures. Default: half the cores, 2 to 8")
      ->check(CLI::Range(1, 256));
  add_numerics_option(command, options.numerics);
  command.add_option(
      "--refiner", options.refiner,
      "A file of the network that makes segments exact (safetensors, docs/segments.md). It runs on "
      "the CPU. Default: none, segments are as the model wrote them");
  command.add_option("--depth", options.depth, "Steps in flight: 1 is the blocking loop")
      ->check(CLI::Range(1, kMaxDepth))
      ->capture_default_str();
  command
      .add_option("--step-timeout", options.step_timeout_s,
                  fmt::format("Seconds after which a step of the device counts as hung, and the "
                              "device as lost; 0: never. Default: {} on a GPU, {} on the CPU",
                              kStepTimeoutSeconds, kCpuStepTimeoutSeconds))
      ->check(number_between(0, 86'400));
  add_wait_option(command, options.wait);
  command
      .add_option(
          "--picture-memory-mb", options.picture_memory_mb,
          "Memory in MiB for all pictures that are being decoded for one device; a picture that "
          "takes more is refused")
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

// For tests of the whole program (tests/faults): GAPLESS_TEST_FAULT is a fault of every device, or
// LABEL=FAULT of one of several.
StatusOr<std::unique_ptr<Device>> with_test_fault(std::unique_ptr<Device> device,
                                                  std::string_view label) {
  const char* const variable = std::getenv("GAPLESS_TEST_FAULT");
  if (variable == nullptr) return device;
  std::string_view fault = variable;
  if (const std::size_t end = fault.find('='); end != std::string_view::npos) {
    if (fault.substr(0, end) != label) return device;
    fault.remove_prefix(end + 1);
  }
  GAPLESS_ASSIGN_OR_RETURN(const DeviceFault parsed, parse_device_fault(fault));
  return make_faulty_device(std::move(device), parsed);
}

ModelOptions model_options(const EngineCommandOptions& options) {
  return {.weights = options.weights,
          .kv_cache = options.kv_cache,
          .compute = options.compute,
          .kv_cache_bytes = kv_cache_bytes(options.kv_cache_gb),
          .kv_cache_sized_to_machine = true,
          .max_rows = options.max_rows,
          .max_context = options.max_context,
          .numerics = split_numerics(options.numerics),
          .adjust_limits = nullptr};
}

constexpr double kBytesOfGiB = 1 << 30;

EngineOptions engine_options(const EngineCommandOptions& options, DeviceKind kind) {
  EngineOptions made;
  made.loop.depth = options.depth;
  made.loop.step_timeout_ns = step_timeout_ns(options, kind);
  made.loop.naps = options.wait == "nap";
  made.loop.on_device_lost = options.on_device_lost;
  made.num_preprocess_threads = options.preprocess_threads.value_or(0);
  if (kind == DeviceKind::kCpu) made.num_staged_crops = kCpuStagedCrops;
  made.picture_memory_bytes = options.picture_memory_mb << 20;
  made.max_active_requests = options.max_active_requests;
  return made;
}

StatusOr<std::unique_ptr<LoadedModel>> load_on(std::unique_ptr<Device> device,
                                               const ModelSource& source,
                                               const EngineCommandOptions& options) {
  ModelOptions chosen = model_options(options);
  GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, device->info());
  GAPLESS_ASSIGN_OR_RETURN(const std::optional<std::size_t> bound, memory_bound(options, info));
  if (bound) {
    const LoopOptions loop = engine_options(options, info.kind).loop;
    GAPLESS_ASSIGN_OR_RETURN(FittedModel fitted, fit_model(info, *bound, source, chosen, loop));
    chosen = std::move(fitted.options);
    device = limit_device_memory(std::move(device), *bound - kDriverBytes);
  }
  return load_model(std::move(device), source, chosen);
}

// One for all devices; nullptr: none is asked for.
StatusOr<std::shared_ptr<SegmentRefiner>> load_refiner(const ModelSource& source,
                                                       const EngineCommandOptions& options) {
  if (options.refiner.empty()) return std::shared_ptr<SegmentRefiner>();
  StatusOr<std::unique_ptr<SegmentRefiner>> refiner =
      SegmentRefiner::load(source, options.refiner, options.compute);
  if (!refiner.ok()) return refiner.status().with_context("--refiner");
  log_info(
      "segments are refined on the CPU, outlined by {}: {:.2f} GiB of its memory, and one decoded "
      "picture for each device",
      outline_tracer(), static_cast<double>((*refiner)->bytes()) / kBytesOfGiB);
  return std::shared_ptr<SegmentRefiner>(std::move(refiner).value());
}

// Opened, in the order of the option.
struct OpenDevices {
  std::vector<std::string> labels;
  std::vector<std::unique_ptr<Device>> devices;
};

StatusOr<OpenDevices> open_chosen_devices(const std::string& text) {
  OpenDevices open;
  const auto add = [&open](std::string label, std::unique_ptr<Device> device) -> Status {
    GAPLESS_ASSIGN_OR_RETURN(device, with_test_fault(std::move(device), label));
    open.labels.push_back(std::move(label));
    open.devices.push_back(std::move(device));
    return ok_status();
  };
  if (text == "auto") {
    GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_named_device(text));
    const bool is_cpu = device->kind() == DeviceKind::kCpu;
    GAPLESS_RETURN_IF_ERROR(add(is_cpu ? "cpu" : "cuda:0", std::move(device)));
    return open;
  }
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<NamedDevice> named,
                           parse_device_list(text, num_cuda_devices));
  for (const NamedDevice& one : named) {
    GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_device(one.spec));
    GAPLESS_RETURN_IF_ERROR(add(one.label, std::move(device)));
  }
  return open;
}

}  // namespace

StatusOr<std::unique_ptr<Device>> open_chosen_device(const std::string& name) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_named_device(name));
  return with_test_fault(std::move(device), name);
}

StatusOr<std::unique_ptr<EngineGroup>> start_engines(const EngineCommandOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(OpenDevices open, open_chosen_devices(options.device));
  const DeviceKind kind = open.devices.front()->kind();
  // Found, and downloaded, once; each device reads the same mapped files.
  GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_chosen_model(options.model));
  EngineOptions chosen = engine_options(options, kind);
  GAPLESS_ASSIGN_OR_RETURN(chosen.refiner, load_refiner(source, options));
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<EngineGroup> engines,
                           EngineGroup::start(
                               std::move(open.labels),
                               [&](std::size_t index) {
                                 return load_on(std::move(open.devices[index]), source, options);
                               },
                               chosen));
  for (int i = 0; i < engines->size(); ++i) {
    Engine& engine = engines->engine(i);
    log_info("memory of {}: {}", engines->label(i),
             describe(memory_of(*engine.model().model, engine.loop())));
  }
  return engines;
}

Status write_trace(const EngineCommandOptions& options, const EngineGroup& engines) {
  if (options.trace.empty()) return ok_status();
  return write_chrome_trace(traces_of(engines), options.trace);
}

namespace {

// What the device of a dry run passes for.
StatusOr<DeviceInfo> describe_device(const EngineCommandOptions& options) {
  const StatusOr<OpenDevices> open = open_chosen_devices(options.device);
  if (open.ok()) return open->devices.front()->info();
  if (!options.device.starts_with("cuda") || !options.gpu_memory_gb) return open.status();
  // Which GPU it is matters little to what is allocated.
  constexpr int kManyMultiprocessors = 132;
  const auto bytes = static_cast<std::size_t>(*options.gpu_memory_gb * kBytesOfGiB);
  return DeviceInfo{.kind = DeviceKind::kCuda,
                    .name = fmt::format("a GPU of {} GiB", *options.gpu_memory_gb),
                    .total_memory_bytes = bytes,
                    .free_memory_bytes = bytes,
                    .num_multiprocessors = kManyMultiprocessors};
}

StatusOr<MemoryPlan> plan_engine_memory(const EngineCommandOptions& options,
                                        const DeviceInfo& info) {
  GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_chosen_model(options.model));
  const LoopOptions loop = engine_options(options, info.kind).loop;
  GAPLESS_ASSIGN_OR_RETURN(const std::optional<std::size_t> bound, memory_bound(options, info));
  if (bound) {
    GAPLESS_ASSIGN_OR_RETURN(FittedModel fitted,
                             fit_model(info, *bound, source, model_options(options), loop));
    return std::move(fitted.plan);
  }
  return plan_memory(info, source, model_options(options), loop);
}

}  // namespace

int print_memory_plan(const EngineCommandOptions& options) {
  const StatusOr<DeviceInfo> info = describe_device(options);
  if (!info.ok()) return report(info.status());
  const StatusOr<MemoryPlan> plan = plan_engine_memory(options, *info);
  if (!plan.ok()) return report(plan.status());
  std::printf("%s, nothing is loaded:\n%s", info->name.c_str(), memory_table(*plan).c_str());
  if (info->kind == DeviceKind::kCuda) {
    std::printf("  The driver takes about %.2f GiB beside it.\n",
                static_cast<double>(kDriverBytes) / kBytesOfGiB);
  }
  return 0;
}

int report(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "gapless: %s\n", status.to_string().c_str());
  return status.code() == StatusCode::kDeviceError ? kExitDeviceError : 1;
}

}  // namespace gapless
