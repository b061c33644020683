// The --parent option: a process that ends with the one that started it.
#pragma once

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace gapless {

void add_parent_option(CLI::App& command, std::optional<int>& parent);

// Sends SIGTERM to its own process as soon as `parent` is not the parent process any more, however
// that one ended. No system call reports the end of a process without exceptions: PR_SET_PDEATHSIG
// follows the thread that started us, which may end long before its process. So it asks now and
// then. Without a parent nothing happens.
class ParentWatch {
 public:
  explicit ParentWatch(std::optional<int> parent);
  ~ParentWatch();
  ParentWatch(const ParentWatch&) = delete;
  ParentWatch& operator=(const ParentWatch&) = delete;

 private:
  void watch(int parent);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;   // guarded by mutex_
  std::thread thread_;  // last: it uses the others
};

}  // namespace gapless
