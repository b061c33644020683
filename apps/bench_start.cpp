// gapless bench start: from the start of a process to its exit with an answer, as somebody who
// types `gapless run` sees it: loading, start-up, preprocessing, the answer, and the way out.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/json/array.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench_options.h"
#include "engine_options.h"
#include "measure/step_statistics.h"
#include "memory_options.h"

extern char** environ;

namespace gapless {
namespace {

struct StartOptions {
  BenchOptions bench{.device = "cpu"};
  std::string image = "tests/golden/tiny/single.png";
  std::string question = "How many shapes are there?";
  int repeats = 10;
  int cores = 2;
};

struct Started {
  double seconds = 0;
  std::string output;
};

std::vector<std::string> command_line(const StartOptions& options) {
  std::vector<std::string> arguments{"/proc/self/exe", "run",         "query",
                                     "--image",        options.image, "--question",
                                     options.question, "--device",    options.bench.device};
  if (!options.bench.model.name.empty()) {
    arguments.insert(arguments.end(), {"--model", options.bench.model.name});
  }
  const std::vector<std::string> formats =
      format_arguments(options.bench.weights, options.bench.kv_cache);
  arguments.insert(arguments.end(), formats.begin(), formats.end());
  return arguments;
}

Status system_error(std::string_view call) {
  return make_error(StatusCode::kInternal, "{}: {}", call, std::strerror(errno));
}

// Reads until the writing end is closed.
std::string read_all(int pipe) {
  std::string out;
  std::array<char, 4096> chunk;
  ssize_t count = 0;
  while ((count = read(pipe, chunk.data(), chunk.size())) > 0) {
    out.append(chunk.data(), static_cast<std::size_t>(count));
  }
  return out;
}

StatusOr<Started> start_once(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);

  Started started;
  const std::int64_t begin_ns = host_now_ns();
  pid_t process = 0;
  const int error = posix_spawn(&process, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) started.output = read_all(ends[0]);
  close(ends[0]);
  if (error != 0) {
    return make_error(StatusCode::kInternal, "posix_spawn: {}", std::strerror(error));
  }
  int exit_status = 0;
  if (waitpid(process, &exit_status, 0) != process) return system_error("waitpid");
  started.seconds = static_cast<double>(host_now_ns() - begin_ns) / 1e9;
  if (!WIFEXITED(exit_status) || WEXITSTATUS(exit_status) != 0) {
    return make_error(StatusCode::kInternal, "gapless run failed (status {})", exit_status);
  }
  while (!started.output.empty() && started.output.back() == '\n') started.output.pop_back();
  return started;
}

Status run_start(const StartOptions& options) {
  GAPLESS_RETURN_IF_ERROR(use_cores(options.cores));
  std::vector<double> seconds;
  std::string answer;
  for (int i = 0; i < options.repeats; ++i) {
    GAPLESS_ASSIGN_OR_RETURN(const Started started, start_once(command_line(options)));
    seconds.push_back(started.seconds);
    answer = started.output;
    fmt::print("{:>3}  {:.3f} s  {}\n", i + 1, started.seconds, answer);
    std::fflush(stdout);
  }
  const Spread spread = spread_of(seconds);
  fmt::print("median {:.3f} s, p10 {:.3f}, p90 {:.3f}, on {} cores\n", spread.median, spread.p10,
             spread.p90, options.cores);
  if (options.bench.json.empty()) return ok_status();
  boost::json::array all;
  for (const double value : seconds) all.push_back(rounded(value, 4));
  ResultHeader header;
  header.commit = options.bench.commit;
  header.device = fmt::format("{}, {} cores", options.bench.device, options.cores);
  header.model = options.bench.model.name.empty() ? "models/tiny" : options.bench.model.name;
  header.ceiling = "none";
  return write_result(options.bench.json, header,
                      {{"benchmark", "start"},
                       {"spread", "p10 and p90 of the repeats"},
                       {"cores", options.cores},
                       {"image", options.image},
                       {"question", options.question},
                       {"answer", answer},
                       {"median_s", rounded(spread.median, 4)},
                       {"p10_s", rounded(spread.p10, 4)},
                       {"p90_s", rounded(spread.p90, 4)},
                       {"repeats_s", all}});
}

}  // namespace

void add_bench_start_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<StartOptions>();
  CLI::App* command =
      bench.add_subcommand("start", "Time from the start of a process to its answer");
  add_bench_options(*command, options->bench);
  command->add_option("--image", options->image, "JPEG, PNG or WebP file")->capture_default_str();
  command->add_option("--question", options->question, "About it")->capture_default_str();
  command->add_option("--repeats", options->repeats, "Processes, one after the other")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--cores", options->cores, "Processor cores that they may use")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_start(*options)); }; });
}

}  // namespace gapless
