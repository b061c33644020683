#include "parent_watch.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <limits>

#include "base/log.h"

namespace gapless {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{200};

}  // namespace

void add_parent_option(CLI::App& command, std::optional<int>& parent) {
  command
      .add_option("--parent", parent,
                  "End, as after SIGTERM, when this process is not (or no more) the one that "
                  "started this command")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()))
      ->type_name("PID");
}

ParentWatch::ParentWatch(std::optional<int> parent) {
  if (parent) thread_ = std::thread([this, parent] { watch(*parent); });
}

ParentWatch::~ParentWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ParentWatch::watch(int parent) {
  std::unique_lock lock(mutex_);
  while (!over_ && getppid() == parent) changed_.wait_for(lock, kBetweenLooks);
  if (over_) return;
  log_warning("process {} has ended: leaving", parent);
  kill(getpid(), SIGTERM);
}

}  // namespace gapless
