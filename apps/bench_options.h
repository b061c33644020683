// What the subcommands of `gapless bench` share.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "commands.h"
#include "constraint/spatial_automaton.h"
#include "measure/result_file.h"
#include "measure/workload.h"
#include "model/model_loader.h"
#include "model_option.h"

namespace gapless {

struct BenchOptions {
  ModelOption model;
  std::string device = "auto";
  WeightFormat weights = WeightFormat::kNative;
  KvFormat kv_cache = KvFormat::kNative;
  Compute compute = Compute::kAuto;
  std::optional<double> kv_cache_gb;
  std::optional<int> max_context;
  std::optional<int> max_rows;     // absent: as many as a model has by default
  std::string json;                // file for the result; empty: none
  std::string commit;              // for the result; empty: asked of git
  double peak_bandwidth_tb_s = 0;  // 0: unknown
};

// --json, --commit
void add_result_options(CLI::App& command, std::string& json, std::string& commit);

void add_bench_options(CLI::App& command, BenchOptions& options);

// --context, --tokens, --fixed-lengths, --no-image, --shared-image, --random-tokens, --seed
void add_workload_options(CLI::App& command, Workload& workload);

// The model gets seats for so many rows, where they are more than a GPU has by default.
void ask_for_rows(BenchOptions& options, const std::vector<int>& rows);

StatusOr<std::unique_ptr<LoadedModel>> load_bench_model(const BenchOptions& options);

StatusOr<ResultHeader> result_header(const BenchOptions& options, LoadedModel& model);

// Keeps this process, and the processes that it starts, on so many of the cores that it may use.
Status use_cores(int count);

// InvalidArgument for a text model.
Status expect_pictures(const LoadedModel& model);

SpatialTokens spatial_tokens(const LoadedModel& model);

void add_bench_overlap_command(CLI::App& bench, Command& chosen);
void add_bench_decode_command(CLI::App& bench, Command& chosen);
void add_bench_forward_command(CLI::App& bench, Command& chosen);
void add_bench_logits_command(CLI::App& bench, Command& chosen);
void add_bench_generate_command(CLI::App& bench, Command& chosen);
void add_bench_grammar_command(CLI::App& bench, Command& chosen);
void add_bench_start_command(CLI::App& bench, Command& chosen);
void add_bench_serve_command(CLI::App& bench, Command& chosen);
void add_bench_pictures_command(CLI::App& bench, Command& chosen);
void add_bench_simulate_command(CLI::App& bench, Command& chosen);
void add_bench_replicas_command(CLI::App& bench, Command& chosen);

}  // namespace gapless
