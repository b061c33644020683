// A server of our own for one measurement: `gapless serve` on a free port, as a child process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace gapless {

class ServerProcess {
 public:
  // Runs this program again with `serve` and these arguments, and waits until its model is ready.
  // Unavailable: it ended before; the message holds the last lines of its log.
  static StatusOr<std::unique_ptr<ServerProcess>> start(std::vector<std::string> arguments);
  // SIGTERM, and waits for its end.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& url() const { return url_; }
  // Ends it. Internal: it did not end with status 0.
  Status stop();
  // The most memory that it ever had, in bytes.
  std::optional<double> peak_resident_bytes() const;

 private:
  ServerProcess() = default;
  void read_log();
  bool has_said(const std::string& text) const;

  pid_t process_ = 0;  // 0: none
  int log_ = -1;       // the reading end of its standard error
  std::string url_;
  mutable std::mutex mutex_;
  std::string said_;        // guarded by mutex_: the log, its older half dropped when it is long
  bool log_ended_ = false;  // guarded by mutex_
  std::thread reader_;
};

}  // namespace gapless
