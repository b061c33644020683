// What weights, caches and rows take of a device's memory: the options for it, and the bound that they give.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kv_format.h"
#include "model/weight_format.h"

namespace gapless {

struct EngineCommandOptions;

// --weights
void add_weights_option(CLI::App& command, WeightFormat& weights);
// --kv-cache
void add_kv_cache_option(CLI::App& command, KvFormat& format);
// --kv-cache-gb
void add_kv_cache_size_option(CLI::App& command, std::optional<double>& gb);
// In bytes, as ModelOptions has it.
std::optional<std::size_t> kv_cache_bytes(std::optional<double> gb);
void add_max_context_option(CLI::App& command, std::optional<int>& max_context);
// --weights and --kv-cache, as the arguments of a process to be started.
std::vector<std::string> format_arguments(WeightFormat weights, KvFormat kv_cache);
// All of them, --gpu-memory and --max-rows too.
void add_memory_options(CLI::App& command, EngineCommandOptions& options);

// What may be taken of a device's memory, where something has to be chosen for it.
StatusOr<std::optional<std::size_t>> memory_bound(const EngineCommandOptions& options,
                                                  const DeviceInfo& info);

}  // namespace gapless
