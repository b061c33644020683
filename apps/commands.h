// One function per subcommand of the gapless binary: declares its options on `app` and sets what
// runs.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace gapless {

// What a subcommand does once its options are parsed; the value is the process's exit status.
using Command = std::function<int()>;

void add_run_command(CLI::App& app, Command& chosen);
void add_serve_command(CLI::App& app, Command& chosen);
void add_batch_command(CLI::App& app, Command& chosen);
void add_bench_command(CLI::App& app, Command& chosen);
void add_info_command(CLI::App& app, Command& chosen);
void add_random_model_command(CLI::App& app, Command& chosen);

}  // namespace gapless
