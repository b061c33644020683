// The file of a Unix socket that a server listens on.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/status.h"

namespace gapless {

// Removes its file on destruction, unless somebody has put another one there meanwhile.
class UnixSocketFile {
 public:
  // Removes a socket at `path` that nobody listens on any more; fine if there is nothing.
  // Unavailable: somebody listens there. InvalidArgument: something else is there, or the path is
  // empty or too long for a socket.
  static Status make_room(const std::string& path);
  // Of a socket that was just bound to `path`: from now on only its owner may connect.
  static StatusOr<UnixSocketFile> take(const std::string& path);

  ~UnixSocketFile();
  UnixSocketFile(UnixSocketFile&& other) noexcept;
  UnixSocketFile& operator=(UnixSocketFile&&) = delete;

 private:
  UnixSocketFile(std::string path, dev_t device, ino_t inode);

  std::string path_;  // empty: moved from
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gapless
