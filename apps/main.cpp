#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "commands.h"
#include "engine_options.h"

namespace {

// A picture's buffers come and go by the megabyte with every request. By default glibc gives such
// memory back to the kernel at once, and the next request pays for every page of it anew: 1.2 ms of
// the time to first token on an H200's host (800x600, a lone client). It may keep so much per arena
// instead.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 8 << 20);
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
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
    const int status = chosen();
    if (status != gapless::kExitDeviceError) return status;
    // The device's library would wait for a device that may not answer any more.
    std::fflush(nullptr);
    std::_Exit(status);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gapless: %s\n", error.what());
    return 1;
  }
}
