// Options that every command with a model shares, and starting an engine from them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "engine/engine_group.h"
#include "kernels/compute.h"
#include "kernels/kv_format.h"
#include "model/weight_format.h"
#include "model_option.h"

namespace gapless {

struct EngineCommandOptions {
  ModelOption model;
  std::string device = "auto";
  WeightFormat weights = WeightFormat::kNative;
  KvFormat kv_cache = KvFormat::kNative;
  Compute compute = Compute::kAuto;
  std::optional<double> kv_cache_gb;    // absent: what suits the device
  std::optional<double> gpu_memory_gb;  // absent: all that is free
  std::optional<int> max_rows;          // absent: what suits the device
  std::optional<int> preprocess_threads;
  std::optional<int> max_context;     // ModelOptions::max_context
  std::string refiner;                // file of the network that refines segments; empty: none
  std::vector<std::string> numerics;  // ModelOptions::numerics, as "tau_gelu=erf"
  int depth = 2;
  int max_active_requests = 1024;        // one more is refused
  std::optional<double> step_timeout_s;  // 0: none; absent: what suits the device
  std::string wait = "nap";              // or "spin": LoopOptions::naps
  std::int64_t picture_memory_mb = kDefaultPictureMemoryBytes >> 20;
  std::function<void(const Status&)> on_device_lost = {};  // see LoopOptions
  std::string trace;                                       // file for write_trace; empty: none
};

// --compute
void add_compute_option(CLI::App& command, Compute& compute);
// --wait: "spin" or "nap".
void add_wait_option(CLI::App& command, std::string& wait);
void add_engine_options(CLI::App& command, EngineCommandOptions& options);
// --trace, for commands that call write_trace.
void add_trace_option(CLI::App& command, EngineCommandOptions& options);

// "auto": the first GPU, or the CPU where there is none.
StatusOr<std::unique_ptr<Device>> open_chosen_device(const std::string& name);

// What the engines of start_engines would take on the first device of --device, as a table on standard output; loads
// nothing. A GPU that is not there is taken to have --gpu-memory. Returns the exit status.
int print_memory_plan(const EngineCommandOptions& options);

// One engine on each device of --device, loaded side by side.
StatusOr<std::unique_ptr<EngineGroup>> start_engines(const EngineCommandOptions& options);

// Writes the last steps of each device as a Chrome trace, if the options ask for one. Call when the last
// request has ended.
Status write_trace(const EngineCommandOptions& options, const EngineGroup& engines);

// The process ends with this status when a call of the device failed or a step did not end: a
// supervisor should start it again. sysexits.h calls it EX_IOERR.
inline constexpr int kExitDeviceError = 74;

// Prints "gapless: ..." to standard error; returns the exit status for it: 0, kExitDeviceError for
// an error of the device, 1 for any other.
int report(const Status& status);

}  // namespace gapless
