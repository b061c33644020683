#include <cstdio>
#include <exception>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app("gapless: a vision-language engine whose GPU never waits for the CPU", "gapless");
  app.require_subcommand(1);
  app.set_version_flag("--version", GAPLESS_VERSION);

  gapless::Command chosen;
  gapless::add_run_command(app, chosen);
  gapless::add_serve_command(app, chosen);
  gapless::add_batch_command(app, chosen);
  gapless::add_bench_command(app, chosen);
  gapless::add_info_command(app, chosen);
  gapless::add_random_model_command(app, chosen);

  CLI11_PARSE(app, argc, argv);
  try {
    return chosen();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gapless: %s\n", error.what());
    return 1;
  }
}
