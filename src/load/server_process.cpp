#include "load/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

extern char** environ;

namespace gapless {
namespace {

// Loading a large model from a cold disk.
constexpr std::chrono::minutes kMaxStart{10};
constexpr std::size_t kMaxLogKept = 64u << 10;

Status system_error(std::string_view call, int error) {
  return make_error(StatusCode::kInternal, "{}: {}", call, std::strerror(error));
}

// "listening url=http://127.0.0.1:41234"
std::string url_in(const std::string& log) {
  const std::size_t at = log.find("listening url=");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + std::strlen("listening url=");
  const std::size_t end = log.find_first_of(" \n", begin);
  return end == std::string::npos ? "" : log.substr(begin, end - begin);
}

}  // namespace

StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::start(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {"/proc/self/exe", "serve", "--port", "0", "--drain-lead", "0"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("pipe2", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::unique_ptr<ServerProcess> server(new ServerProcess());
  const int error =
      posix_spawn(&server->process_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  server->log_ = ends[0];
  if (error != 0) {
    server->process_ = 0;
    return system_error("posix_spawn", error);
  }
  server->reader_ = std::thread([raw = server.get()] { raw->read_log(); });

  const auto give_up = std::chrono::steady_clock::now() + kMaxStart;
  while (!server->has_said(" ready model=")) {
    std::unique_lock lock(server->mutex_);
    if (server->log_ended_ || std::chrono::steady_clock::now() > give_up) {
      return make_error(StatusCode::kUnavailable, "gapless serve did not start:\n{}",
                        server->said_);
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::lock_guard lock(server->mutex_);
  server->url_ = url_in(server->said_);
  return server;
}

ServerProcess::~ServerProcess() {
  (void)stop();
  if (log_ >= 0) close(log_);
}

bool ServerProcess::has_said(const std::string& text) const {
  std::lock_guard lock(mutex_);
  return said_.find(text) != std::string::npos;
}

// Until its end: a child whose log nobody reads would stop.
void ServerProcess::read_log() {
  std::array<char, 4096> chunk;
  ssize_t count = 0;
  while ((count = read(log_, chunk.data(), chunk.size())) > 0) {
    std::lock_guard lock(mutex_);
    said_.append(chunk.data(), static_cast<std::size_t>(count));
    if (said_.size() > kMaxLogKept) said_.erase(0, said_.size() / 2);
  }
  std::lock_guard lock(mutex_);
  log_ended_ = true;
}

Status ServerProcess::stop() {
  if (process_ == 0) return ok_status();
  kill(process_, SIGTERM);
  int exit_status = 0;
  const pid_t ended = waitpid(process_, &exit_status, 0);
  process_ = 0;
  reader_.join();
  if (ended > 0 && WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0) return ok_status();
  std::lock_guard lock(mutex_);
  return make_error(StatusCode::kInternal, "gapless serve ended with status {}:\n{}", exit_status,
                    said_);
}

std::optional<double> ServerProcess::peak_resident_bytes() const {
  std::ifstream file("/proc/" + std::to_string(process_) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("VmHWM:")) continue;
    return std::strtod(line.c_str() + std::strlen("VmHWM:"), nullptr) * 1024;
  }
  return std::nullopt;
}

}  // namespace gapless
