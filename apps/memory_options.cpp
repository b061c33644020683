#include "memory_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/limits.h"
#include "engine/memory_plan.h"
#include "engine_options.h"
#include "option_values.h"

namespace gapless {

namespace {

const std::map<std::string, WeightFormat> kWeightFormats = {{"native", WeightFormat::kNative},
                                                            {"fp8", WeightFormat::kFp8},
                                                            {"w8a8", WeightFormat::kW8A8},
                                                            {"int8", WeightFormat::kInt8}};
const std::map<std::string, KvFormat> kKvFormats = {{"native", KvFormat::kNative},
                                                    {"fp8", KvFormat::kFp8}};

}  // namespace

void add_weights_option(CLI::App& command, WeightFormat& weights) {
  add_choice_option(
      command, "--weights", weights, kWeightFormats,
      "native; fp8: matrices in 8 bits with a scale per row, made at start-up; w8a8: "
      "the same, and products in 8 bits in the vision encoder and in prefills; or int8, on "
      "the CPU: all of these products in 8-bit whole numbers, in less memory");
}

void add_kv_cache_option(CLI::App& command, KvFormat& format) {
  add_choice_option(
      command, "--kv-cache", format, kKvFormats,
      "native, or fp8: keys and values in 8 bits, so that twice as many fit (four times "
      "on the CPU)");
}

void add_kv_cache_size_option(CLI::App& command, std::optional<double>& gb) {
  command
      .add_option("--kv-cache-gb", gb,
                  "Memory for keys and values in GiB, one context at least. Default: what is left "
                  "of a GPU's memory; a part of the machine's, 0.75 at most, on the CPU")
      ->check(number_between(0.001, 1e6));
}

std::optional<std::size_t> kv_cache_bytes(std::optional<double> gb) {
  if (!gb) return std::nullopt;
  return static_cast<std::size_t>(*gb * (std::size_t{1} << 30));
}

void add_max_context_option(CLI::App& command, std::optional<int>& max_context) {
  command
      .add_option(
          "--max-context", max_context,
          fmt::format(
              "Positions of a sequence, prompt and answer, at most as many as the model was "
              "trained for. Default: those that its config.json says, {} at most",
              kDefaultTextContext))
      ->check(CLI::Range(1, kMaxContext));
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

void add_memory_options(CLI::App& command, EngineCommandOptions& options) {
  add_weights_option(command, options.weights);
  add_kv_cache_option(command, options.kv_cache);
  add_kv_cache_size_option(command, options.kv_cache_gb);
  command
      .add_option("--gpu-memory", options.gpu_memory_gb,
                  "GiB of each GPU's memory that may be taken, the driver's own included; what "
                  "does not fit is "
                  "refused at start, with what would do. Default: what is free")
      ->check(number_between(0.1, 1e6));
  command
      .add_option("--max-rows", options.max_rows,
                  fmt::format("Sequences that run at once. Default: {} on a GPU, 16 on the CPU, "
                              "fewer where memory is "
                              "short. At most {}",
                              kDefaultSeats, kMaxSeats))
      ->check(CLI::Range(1, kMaxSeats));
  add_max_context_option(command, options.max_context);
}

namespace {

// GPUs of less memory get what fits chosen for them; larger ones have room for what is usual.
constexpr std::size_t kSmallGpuBytes = std::size_t{32} << 30;

}  // namespace

StatusOr<std::optional<std::size_t>> memory_bound(const EngineCommandOptions& options,
                                                  const DeviceInfo& info) {
  if (options.gpu_memory_gb) {
    if (info.kind != DeviceKind::kCuda) {
      return invalid_argument("--gpu-memory is for a GPU; the CPU's cache has --kv-cache-gb");
    }
    const auto bytes = static_cast<std::size_t>(*options.gpu_memory_gb * (std::size_t{1} << 30));
    return std::optional(std::max(bytes, kDriverBytes));
  }
  if (info.kind != DeviceKind::kCuda || info.total_memory_bytes > kSmallGpuBytes) {
    return std::optional<std::size_t>();
  }
  // The driver's share is not free any more.
  return std::optional(info.free_memory_bytes + kDriverBytes);
}

}  // namespace gapless
