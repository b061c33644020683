// Options that every command with a model shares, and starting an engine from them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "kernels/kv_format.h"
#include "model/weight_format.h"

namespace gapless {

struct EngineCommandOptions {
  std::string model;  // empty: the model that ships
  std::string device = "auto";
  WeightFormat weights = WeightFormat::kNative;
  KvFormat kv_cache = KvFormat::kNative;
  int depth = 2;
  int max_active_requests = 1024;  // one more is refused
  std::string trace;               // file for write_trace; empty: none
};

// --weights
void add_weights_option(CLI::App& command, WeightFormat& weights);
// --kv-cache
void add_kv_cache_option(CLI::App& command, KvFormat& format);
// Both again, as the arguments of a process to be started.
std::vector<std::string> format_arguments(WeightFormat weights, KvFormat kv_cache);
void add_engine_options(CLI::App& command, EngineCommandOptions& options);
// --trace, for commands that call write_trace.
void add_trace_option(CLI::App& command, EngineCommandOptions& options);

// "auto": the first GPU, or the CPU where there is none.
StatusOr<std::unique_ptr<Device>> open_chosen_device(const std::string& name);

StatusOr<std::unique_ptr<Engine>> start_engine(const EngineCommandOptions& options);

// Writes the last steps of the engine as a Chrome trace, if the options ask for one. Call when the
// last request has ended.
Status write_trace(const EngineCommandOptions& options, Engine& engine);

// Prints "gapless: ..." to standard error; returns the exit status for it.
int report(const Status& status);

}  // namespace gapless
