// gapless bench NAME: measurements, each with a table for a person and a JSON file to keep.
#include "bench_options.h"

namespace gapless {

void add_bench_command(CLI::App& app, Command& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Measure; docs/benchmarks.md says what and why");
  bench->require_subcommand(1);
  add_bench_overlap_command(*bench, chosen);
  add_bench_decode_command(*bench, chosen);
  add_bench_generate_command(*bench, chosen);
  add_bench_forward_command(*bench, chosen);
  add_bench_logits_command(*bench, chosen);
  add_bench_grammar_command(*bench, chosen);
  add_bench_start_command(*bench, chosen);
  add_bench_serve_command(*bench, chosen);
  add_bench_pictures_command(*bench, chosen);
  add_bench_simulate_command(*bench, chosen);
  add_bench_replicas_command(*bench, chosen);
}

}  // namespace gapless
