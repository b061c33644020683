#include <malloc.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "commands.h"
#include "engine_options.h"
#include "suggestion.h"

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

// A write that nobody reads any more, or that is over the limit on a file's size, is an error of
// that write. By default either ends the process: a server whose log is read by `head`, say.
void turn_signals_of_writes_into_errors() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

// Answers that did not arrive are no success, whatever command they are from.
int check_standard_output(int status) {
  if (status != 0) return status;  // the command has said why
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "gapless: standard output could not be written%s%s\n",
               errno == 0 ? "" : ": ", errno == 0 ? "" : std::strerror(errno));
  return 1;
}

constexpr int kExitUsage = 2;

constexpr const char* kExitStatuses =
    "Exit status: 0 done; 1 it failed, and standard error says why; 2 the command line or "
    "--config is not understood; 74 the device was lost; 128 + N ended by signal N.";

// --help and --version are no failures.
int explain(const CLI::App& app, const CLI::ParseError& error) {
  const int status = app.exit(error);
  if (status == 0) return 0;
  const std::string suggestion = gapless::suggestion_after(app);
  if (!suggestion.empty()) std::fprintf(stderr, "%s\n", suggestion.c_str());
  return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  turn_signals_of_writes_into_errors();
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

  app.footer(kExitStatuses);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain(app, error);
  }
  try {
    const int status = check_standard_output(chosen());
    if (status != gapless::kExitDeviceError) return status;
    // The device's library would wait for a device that may not answer any more.
    std::fflush(nullptr);
    std::_Exit(status);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gapless: %s\n", error.what());
    return 1;
  }
}
